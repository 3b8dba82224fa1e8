"""Prefill nodes whose KV the decode node cannot take: left out of the plan by name, and refused if called anyway."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from baton.internal.v1.prefill_service_pb2 import PrefillRequest
from baton.internal.v1.prefill_service_pb2_grpc import PrefillServiceStub
from baton.internal.v1.router_service_pb2 import PlaceRequest
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_pb2 import SamplingParameters
from checkpoints import checkpoint
from system.bad_input.refusal import Refusal, refusal_of
from system.client import Ask, open_grpc
from system.cluster import Cluster
from system.plan import MODEL_NAME

STRANGERS = {"prefill-0": "dtype", "prefill-1": "model_revision_digest"}
"""Prefill nodes, and the field in which each differs from the decode node."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Run a decode node between prefill nodes of another number format and of other weights."""
    settings = {"prefill-0": {"dtype": "bfloat16"}, "prefill-1": {"model_dir": str(checkpoint("llama3"))}}
    with Cluster(checkpoint("llama"), prefill=("mock", "mock"), decode=("mock",), settings=settings) as cluster:
        yield cluster


def test_the_plan_names_the_field_that_differs(cluster: Cluster) -> None:
    """A candidate of its own, infeasible; another number format is converted, and costs more than it brings here."""
    request = PlaceRequest(
        request_id="plan", model_id=MODEL_NAME, prompt_token_count=500, max_token_count=8, is_dry_run=True
    )
    with grpc.insecure_channel(cluster.address_of("router")) as channel:
        answer = RouterServiceStub(channel).Place(request, timeout=10)  # type: ignore[no-untyped-call]
    reasons = {candidate.prefill_node_id: candidate.infeasible_reason for candidate in answer.candidates}

    assert "KV layouts differ in model_revision_digest: " in reasons["prefill-1"]
    assert reasons["prefill-0"] == ""
    assert answer.placement.prefill_node_id == ""


@pytest.mark.parametrize("name", STRANGERS)
def test_a_prefill_for_another_layout_is_refused_by_the_field(cluster: Cluster, name: str) -> None:
    """FAILED_PRECONDITION KV_LAYOUT_MISMATCH from the node itself, should anybody ask it."""
    layout = cluster.node("decode-0").node.kv_layout
    request = PrefillRequest(
        request_id="stranger",
        attempt=1,
        token_ids=[1, 2, 3],
        expected_layout=layout,
        sampling=SamplingParameters(temperature=0),
    )
    with grpc.insecure_channel(cluster.address_of(name)) as channel:
        refusal = refusal_of(PrefillServiceStub(channel).Prefill, request)  # type: ignore[no-untyped-call]

    assert refusal == Refusal("FAILED_PRECONDITION", "KV_LAYOUT_MISMATCH", STRANGERS[name])


def test_requests_are_served_without_the_strangers(cluster: Cluster) -> None:
    """The decode node computes the prompt itself, and that is no fallback."""
    outcome = open_grpc(cluster, Ask(tuple(range(3, 300)), 8)).outcome()

    assert (outcome.error, len(outcome.token_ids)) == ("", 8)
    assert outcome.placement.prefill_node_id == "decode-0"
    assert outcome.placement.fallback_reason == ""
