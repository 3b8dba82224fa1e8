"""Chat completions through the official client."""

from __future__ import annotations

from typing import Any

import openai

from baton.kv.hashing import block_hashes, join_hashes, root_hash
from gateway.fake_cluster import BLOCK_TOKENS, MODEL, REVISION, FakeCluster
from text.tokenizer_folders import byte_level

MESSAGES: list[Any] = [{"role": "user", "content": "hello world 😀"}]


def _prompt_tokens() -> list[int]:
    return list(byte_level().apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False))


def test_a_chat_completion_has_text_usage_and_placement(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """The whole answer, as OpenAI shapes it, with Baton's detail beside it."""
    prompt = _prompt_tokens()

    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=len(prompt))

    assert answer.choices[0].message.content == "hello world 😀"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == answer.usage.completion_tokens == len(prompt)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.baton["decode_node"] == "decode-0"  # type: ignore[attr-defined]
    assert answer.baton["exposed_share"] == 0.25  # type: ignore[attr-defined]
    assert answer.baton["kv_wire"] == "bfloat16/int8"  # type: ignore[attr-defined]
    assert answer.baton["kv_transport"] == "fast"  # type: ignore[attr-defined]
    joules = [answer.baton[f"{phase}_energy_joules"] for phase in ("prefill", "decode")]  # type: ignore[attr-defined]
    peaks = [answer.baton[f"{phase}_peak_memory_bytes"] for phase in ("prefill", "decode")]  # type: ignore[attr-defined]
    assert (joules, peaks) == ([1.5, 0.25], [1 << 30, 1 << 31])


def test_the_prompt_is_placed_with_its_block_hashes(client: openai.OpenAI, cluster: FakeCluster) -> None:
    """Router and nodes name blocks alike, or no prefix is ever found."""
    client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=1, extra_body={"cache_salt": "s"})

    prompt = _prompt_tokens()
    expected = join_hashes(block_hashes(root_hash(REVISION, BLOCK_TOKENS, "s"), prompt, BLOCK_TOKENS))
    assert cluster.router.requests[0].block_hashes == expected
    assert cluster.router.requests[0].prompt_token_count == len(prompt)
    assert list(cluster.decodes[0].requests[0].prompt_token_ids) == prompt


def test_a_stream_gives_the_same_text_without_half_a_character(client: openai.OpenAI) -> None:
    """Deltas joined are the answer; the emoji comes in one piece."""
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=len(_prompt_tokens()),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)

    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == "hello world 😀"
    assert "😀" in deltas
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(_prompt_tokens())
    assert chunks[-1].baton["kv_bytes"] == 4096  # type: ignore[attr-defined]
