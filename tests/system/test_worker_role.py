"""Two nodes that both prefill and decode: either for the other, and one alone when the other is gone."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from baton.demo import checkpoint_dir
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.internal.v1.decode_service_pb2_grpc import DecodeServiceStub
from baton.internal.v1.router_service_pb2 import PlacementPin, PlaceRequest
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_pb2 import PlacementSummary, SamplingParameters
from system.cluster import Cluster
from system.plan import MODEL_NAME
from system.rest import COMPLETION_PATH, post

PROMPT = [3 + position * 7 % 250 for position in range(100)]
NUM_TOKENS = 12
BOTH = ("worker-0", "worker-1")


@pytest.fixture(scope="module")
def workers() -> Iterator[Cluster]:
    """Run two workers and nothing else that computes."""
    with Cluster(checkpoint_dir(), prefill=(), decode=(), worker=("mock", "mock")) as cluster:
        yield cluster


def _generate(cluster: Cluster, decode: str, prefill: str) -> tuple[list[int], PlacementSummary]:
    """Generate on one node, the prompt computed on another; empty: on the same."""
    name = f"{decode}-{prefill or 'alone'}"
    with grpc.insecure_channel(cluster.address_of("router")) as channel:
        pin = PlacementPin(decode_node_id=decode, prefill_node_id=prefill)
        place = PlaceRequest(
            request_id=name, model_id=MODEL_NAME, prompt_token_count=len(PROMPT), max_token_count=NUM_TOKENS, pins=[pin]
        )
        placement = RouterServiceStub(channel).Place(place, timeout=20).placement  # type: ignore[no-untyped-call]
    request = DecodeServiceGenerateRequest(
        request_id=name,
        attempt=1,
        model_id=MODEL_NAME,
        prompt_token_ids=PROMPT,
        sampling=SamplingParameters(temperature=0, ignore_eos=True, max_token_count=NUM_TOKENS),
        placement=placement,
        bypass_prefix_cache=True,
    )
    tokens: list[int] = []
    with grpc.insecure_channel(cluster.address_of(decode)) as channel:
        for answer in DecodeServiceStub(channel).Generate(request, timeout=60):  # type: ignore[no-untyped-call]
            tokens += answer.tokens.token_ids
            if answer.HasField("finished"):
                return tokens, answer.finished.summary
    raise AssertionError(f"no end after {tokens}")


def test_each_prefills_for_the_other_token_exactly(workers: Cluster) -> None:
    """K and V travel both ways, and the tokens are those of a node that computes its own prompt."""
    expected, alone = _generate(workers, BOTH[0], "")
    assert alone.kv_byte_count == 0

    for decode, prefill in (BOTH, BOTH[::-1]):
        tokens, summary = _generate(workers, decode, prefill)

        assert tokens == expected
        assert (summary.prefill_node_id, summary.fallback_reason) == (prefill, "")
        assert summary.kv_byte_count > 0


def test_one_serves_alone_when_the_other_is_gone(workers: Cluster) -> None:
    """The router knows it as soon as the registration breaks; the gateway's clients see no error."""
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    before = post(workers, COMPLETION_PATH, body)
    workers.kill(BOTH[1])
    workers.wait_until(lambda: set(workers.nodes()) == {BOTH[0]}, "the router knows one node")

    after = post(workers, COMPLETION_PATH, body)

    assert (before.status, after.status) == (200, 200)
    assert after.body["choices"][0]["text"] == before.body["choices"][0]["text"]
