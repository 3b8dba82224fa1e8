"""POST /bench/chat/completions against played nodes: what is asked of them, and which figures come back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from baton.gateway.server import RunningGateway
from baton.internal.v1 import decode_service_pb2 as decode
from baton.v1 import generation_pb2 as generation
from gateway.fake_cluster import MODEL, FakeCluster, echo_token, tokens
from gateway.rest import ask

PATH = "/bench/chat/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello world"}], "max_tokens": 4}


class Node:
    """What the decode node reports of its work."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.summary = generation.PlacementSummary(decode_node_id="decode-0", prefill_node_id="decode-0")
        self.summary.prefill_duration.FromMilliseconds(100)
        self.summary.decode_duration.FromMilliseconds(300)
        self.summary.decode_peak_memory_byte_count = 1000
        self.cluster = cluster
        cluster.decodes[0].script = self.script

    async def script(
        self, request: decode.DecodeServiceGenerateRequest
    ) -> AsyncIterator[decode.DecodeServiceGenerateResponse]:
        """Repeat the prompt up to the token limit, and report."""
        for index in range(request.sampling.max_token_count):
            yield tokens(index, [echo_token(request, index)])
        self.summary.completion_token_count = request.sampling.max_token_count
        finished = decode.Finished(reason=generation.FINISH_REASON_LENGTH, summary=self.summary)
        yield decode.DecodeServiceGenerateResponse(finished=finished)

    @property
    def request(self) -> decode.DecodeServiceGenerateRequest:
        """Return the last request."""
        return self.cluster.decodes[0].requests[-1]


@pytest.fixture
def node(cluster: FakeCluster) -> Node:
    """Return the node on which requests run."""
    return Node(cluster)


@pytest.mark.parametrize(("fields", "is_bypassed"), [({}, True), ({"use_prefix_cache": True}, False)])
def test_caches_are_off_on_every_hop_unless_they_are_asked_for(
    gateway: RunningGateway, cluster: FakeCluster, node: Node, fields: dict[str, Any], is_bypassed: bool
) -> None:
    """The router counts on none, and the decode node, which tells the prefill node, uses none."""
    assert ask(gateway, PATH, BODY | fields).status == 200
    assert cluster.router.requests[-1].bypass_prefix_cache == is_bypassed
    assert node.request.bypass_prefix_cache == is_bypassed


def test_end_tokens_are_masked_up_to_the_limit(gateway: RunningGateway, node: Node) -> None:
    """They are no ordinary tokens either: they cannot be chosen."""
    ask(gateway, PATH, BODY | {"temperature": 0, "seed": 7})

    sampling = node.request.sampling
    assert (sampling.min_token_count, sampling.max_token_count, sampling.ignore_eos) == (4, 4, False)
    assert (sampling.temperature, sampling.seed) == (0, 7)


def test_the_figures_are_those_of_the_nodes(gateway: RunningGateway, node: Node) -> None:
    """Uncached prompt tokens by prefill seconds; tokens after the first by the seconds between first and last."""
    node.summary.decode_cached_token_count = 4
    answer = ask(gateway, PATH, BODY).body

    num_prompt = answer["usage"]["prompt_tokens"]
    assert answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["generation_stats"] == {
        "prompt_tps": pytest.approx((num_prompt - 4) / 0.1),
        "generation_tps": pytest.approx(3 / 0.3),
        "prompt_tokens": num_prompt,
        "generation_tokens": 4,
        "peak_memory_usage": {"inBytes": 1000},
        "prefix_cache_hit": "partial",
    }
    assert "power_usage" not in answer


def test_a_remote_prefill_is_measured_where_it_was(gateway: RunningGateway, node: Node) -> None:
    """By the prefill node's cache, not the decode node's; the larger peak counts."""
    node.summary.prefill_node_id = "prefill-0"
    node.summary.decode_cached_token_count = 8
    node.summary.prefill_peak_memory_byte_count = 2000
    answer = ask(gateway, PATH, BODY).body

    stats = answer["generation_stats"]
    assert stats["prompt_tps"] == pytest.approx(stats["prompt_tokens"] / 0.1)
    assert stats["prefix_cache_hit"] == "none"
    assert stats["peak_memory_usage"] == {"inBytes": 2000}


def test_a_single_token_has_no_rate_and_is_a_number(gateway: RunningGateway, node: Node) -> None:
    """0, never null."""
    node.summary.decode_duration.FromMilliseconds(0)
    stats = ask(gateway, PATH, BODY | {"max_tokens": 1}).body["generation_stats"]

    assert stats["generation_tps"] == 0
    assert all(value is not None for value in stats.values())


def test_energy_is_told_where_it_is_known(gateway: RunningGateway, node: Node) -> None:
    """Each phase by itself; what no sensor covers is absent."""
    node.summary.prefill_energy_joules = 2.5
    prefill_only = ask(gateway, PATH, BODY).body["power_usage"]
    node.summary.decode_energy_joules = 0.0
    both = ask(gateway, PATH, BODY).body["power_usage"]

    assert prefill_only == {"prefill_energy_joules": 2.5}
    assert both == {"prefill_energy_joules": 2.5, "generation_energy_joules": 0.0}


def test_an_exact_hit_reports_the_rate_of_the_run_that_computed_it(gateway: RunningGateway, node: Node) -> None:
    """Its own prefill is a handful of tokens; a prompt of which more was missing is a partial hit."""
    body = BODY | {"use_prefix_cache": True}
    first = ask(gateway, PATH, body).body["generation_stats"]
    num_prompt = first["prompt_tokens"]
    node.summary.prefill_duration.FromMilliseconds(1)
    node.summary.decode_cached_token_count = num_prompt - 5
    partial = ask(gateway, PATH, body).body["generation_stats"]
    node.summary.decode_cached_token_count = num_prompt - 1
    exact = ask(gateway, PATH, body).body["generation_stats"]

    assert (first["prefix_cache_hit"], partial["prefix_cache_hit"]) == ("none", "partial")
    assert partial["prompt_tps"] == pytest.approx(5 / 0.001)
    assert exact["prefix_cache_hit"] == "exact"
    assert exact["prompt_tps"] == pytest.approx(partial["prompt_tps"])


def test_a_stream_has_its_figures_in_comments_before_its_end(gateway: RunningGateway, node: Node) -> None:
    """Clients of the chat endpoint read it like any other stream."""
    node.summary.prefill_energy_joules = 2.5
    body = BODY | {"stream": True, "stream_options": {"include_usage": True}}
    events = ask(gateway, PATH, body).data.decode().split("\n\n")

    assert events[-2:] == ["data: [DONE]", ""]
    assert json.loads(events[-3].removeprefix(": power_usage ")) == {"prefill_energy_joules": 2.5}
    stats = json.loads(events[-4].removeprefix(": generation_stats "))
    assert stats["generation_tokens"] == 4
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-4]]
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    whole = ask(gateway, PATH, BODY).body["choices"][0]["message"]["content"]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == whole


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"tools": [{}]}, "tools"),
        ({"stop": "x"}, "stop"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"seed": 2**70}, "seed"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
def test_what_would_change_the_measurement_is_refused_by_name(
    gateway: RunningGateway, fields: dict[str, Any], param: str
) -> None:
    """Output is parsed for nothing, so nothing that parses it is taken."""
    status, named, _ = ask(gateway, PATH, BODY | fields).error

    assert (status, named) == (400, param)
