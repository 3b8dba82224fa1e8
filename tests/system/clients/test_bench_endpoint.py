"""The bench endpoint on real nodes: exact lengths, cold and warm caches, figures that add up."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from system.cluster import Cluster
from system.plan import MODEL_NAME
from system.rest import CHAT_PATH, ask

BENCH = "/bench/chat/completions"


def body_of(content: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    """Return a greedy request."""
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL_NAME, "messages": messages, "max_tokens": max_tokens, "temperature": 0, **fields}


def bench(cluster: Cluster, content: str, max_tokens: int, **fields: Any) -> Any:
    """Return the answer to a benchmark request."""
    reply = ask(cluster, BENCH, json.dumps(body_of(content, max_tokens, **fields)).encode())
    assert reply.status == 200, reply.body
    return reply.body


def test_exactly_as_many_tokens_come_although_the_model_would_end(demo_cluster: Cluster) -> None:
    """The same conversation ends by itself where end tokens may be chosen."""
    chat = ask(demo_cluster, CHAT_PATH, json.dumps(body_of("Hello!", 200)).encode()).body
    answer = bench(demo_cluster, "Hello!", 200)

    assert chat["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["generation_stats"]["generation_tokens"] == answer["usage"]["completion_tokens"] == 200


def test_no_run_finds_or_leaves_anything_in_a_cache_unless_it_may(demo_cluster: Cluster) -> None:
    """None twice where caches are off; then none, exact with the stored rate, and partial for a longer prompt."""
    cold = [bench(demo_cluster, "a " * 100, 2)["generation_stats"] for _ in range(2)]
    first, second, longer = runs_on_one_node(demo_cluster)

    assert [stats["prefix_cache_hit"] for stats in cold] == ["none", "none"]
    assert [stats["prefix_cache_hit"] for stats in (first, second)] == ["none", "exact"]
    assert second["prompt_tps"] == first["prompt_tps"]
    assert longer["prefix_cache_hit"] == "partial"


def runs_on_one_node(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the figures of a prompt, the same again, and a longer one, all computed by one node.

    On a busy machine the router may choose another one in between, which has computed none of it.
    """
    for word in ("a ", "b ", "c ", "d ", "e "):
        prompts = (word * 100, word * 100, word * 200)
        answers = [bench(cluster, prompt, 2, use_prefix_cache=True) for prompt in prompts]
        if len({answer["baton"]["prefill_node"] for answer in answers}) == 1:
            break
    return [answer["generation_stats"] for answer in answers]


def test_the_figures_are_measured_and_the_memory_is_real(demo_cluster: Cluster) -> None:
    """Rates agree with the nodes' own times; a process that holds a framework is larger than 20 MiB."""
    answer = bench(demo_cluster, "a " * 200, 8)
    stats, placement = answer["generation_stats"], answer["baton"]

    assert stats["prompt_tps"] * placement["prefill_seconds"] == pytest.approx(stats["prompt_tokens"])
    assert stats["generation_tps"] * placement["decode_seconds"] == pytest.approx(7)
    assert stats["peak_memory_usage"]["inBytes"] > 20 << 20


def test_the_figures_of_a_stream_come_before_its_end(demo_cluster: Cluster) -> None:
    """As a comment, which clients of the chat endpoint pass over."""
    connection = http.client.HTTPConnection(*demo_cluster.http_address, timeout=60)
    body = json.dumps(body_of("Hello!", 20, stream=True))
    connection.request("POST", BENCH, body, {"content-type": "application/json"})
    lines = connection.getresponse().read().decode().split("\n\n")
    connection.close()

    stats = next(line for line in lines if line.startswith(": generation_stats "))
    assert json.loads(stats.removeprefix(": generation_stats "))["generation_tokens"] == 20
    assert lines[-2] == "data: [DONE]"
