"""Rows of /bench/chat/completions."""

from __future__ import annotations

from gateway.api.parameters.openai_rows import STREAM, message_rows
from gateway.api.parameters.table import Effect, Row, Seen, accepted, not_found, refused, sampled


def _bypasses_caches(expected: bool) -> Effect:
    return lambda seen: seen.requests[0].bypass_prefix_cache == expected


def _is_stream_with_figures(seen: Seen) -> bool:
    is_stream = seen.reply.headers["content-type"].startswith("text/event-stream")
    return is_stream and b"\n: generation_stats {" in seen.reply.data


BENCH_ROWS = [
    Row("model", {"model": "other"}, not_found),
    *message_rows(options={}),
    Row("max_tokens", {"max_tokens": 3}, sampled(min_token_count=3, max_token_count=3)),
    Row("max_tokens", {"max_tokens": None}, refused("max_tokens")),
    Row("use_prefix_cache", {"use_prefix_cache": True}, _bypasses_caches(False)),
    Row("use_prefix_cache", {}, _bypasses_caches(True)),
    Row("stream", STREAM, _is_stream_with_figures),
    Row("stream_options", {"stream_options": {}}, refused("stream_options")),
    Row(
        "stream_options.include_usage",
        STREAM | {"stream_options": {"include_usage": True}},
        lambda seen: seen.events[-1]["usage"]["completion_tokens"] == 1,
    ),
    Row("stream_options.include_obfuscation", STREAM | {"stream_options": {"include_obfuscation": False}}, accepted),
    Row("temperature", {"temperature": 0.5}, sampled(temperature=0.5)),
    Row("top_p", {"top_p": 0.5}, sampled(top_p=0.5)),
    Row("top_k", {"top_k": 5}, sampled(top_k=5)),
    Row("min_p", {"min_p": 0.25}, sampled(min_p=0.25)),
    Row("seed", {"seed": 7}, sampled(seed=7)),
    Row("n", {"n": 2}, refused("n")),
    Row("logprobs", {"logprobs": True}, refused("logprobs")),
]
