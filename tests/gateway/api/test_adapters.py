"""Adapters at the gateway: listed and asked for like models, placed and computed as what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from baton.gateway.server import RunningGateway
from baton.kv.hashing import adapted_revision, block_hashes, join_hashes, root_hash
from baton.v1 import generation_service_pb2
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import BLOCK_TOKENS, MODEL, REVISION, FakeCluster, Loop
from gateway.rest import ask

MINE, OTHER = "1" * 32, "2" * 32
COMPLETION = {"model": "mine", "prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9], "max_tokens": 3}


@pytest.fixture
def cluster(model_dir: Path) -> FakeCluster:
    """Return a cluster of two nodes that have two adapters, one of them with other weights on the second node."""
    cluster = FakeCluster(model_dir)
    cluster.adapters = {"decode-0": {"mine": MINE}, "decode-1": {"mine": OTHER, "another": OTHER}}
    return cluster


@pytest.fixture
def adapted(loop: Loop, cluster: FakeCluster) -> Iterator[RunningGateway]:
    """Run a gateway that has seen the nodes."""
    with loop.running(cluster) as running:
        while len(ask(running, "/v1/models").body["data"]) < 3:
            pass
        yield running


def test_adapters_are_listed_with_the_model_as_their_parent(adapted: RunningGateway) -> None:
    """In REST and in gRPC, after the model itself and sorted by name."""
    with grpc.insecure_channel(f"127.0.0.1:{adapted.grpc_port}") as channel:
        stub = GenerationServiceStub(channel)  # type: ignore[no-untyped-call]
        models = stub.ListModels(generation_service_pb2.ListModelsRequest(), timeout=20).models

    listed = ask(adapted, "/v1/models").body["data"]
    assert [(each["id"], each["root"], each["parent"]) for each in listed] == [
        (MODEL, MODEL, None),
        ("another", MODEL, MODEL),
        ("mine", MODEL, MODEL),
    ]
    assert ask(adapted, "/v1/models/mine").body == listed[2]
    assert [(model.name, model.parent) for model in models] == [(MODEL, ""), ("another", MODEL), ("mine", MODEL)]


def test_a_request_names_model_and_adapter_apart(adapted: RunningGateway, cluster: FakeCluster) -> None:
    """Hashes and revision are those of the model with the adapter, as the first of the nodes has it."""
    answer = ask(adapted, "/v1/completions", COMPLETION)

    revision = adapted_revision(REVISION, MINE)
    hashes = block_hashes(root_hash(revision, BLOCK_TOKENS), COMPLETION["prompt"], BLOCK_TOKENS)  # type: ignore[arg-type]
    placed, (request,) = cluster.router.requests[-1], cluster.decodes[0].requests
    assert answer.status == 200
    assert answer.body["model"] == "mine"
    assert (placed.model_id, placed.adapter.name, placed.adapter.digest) == (MODEL, "mine", MINE)
    assert placed.block_hashes == join_hashes(hashes)
    assert (request.model_id, request.adapter, request.model_revision_digest) == (MODEL, "mine", revision)


def test_a_request_for_the_model_has_no_adapter(adapted: RunningGateway, cluster: FakeCluster) -> None:
    """Nothing is set that an older node would not know."""
    ask(adapted, "/v1/completions", {**COMPLETION, "model": MODEL})

    assert not cluster.router.requests[-1].HasField("adapter")
    assert cluster.decodes[0].requests[-1].adapter == ""
    assert cluster.decodes[0].requests[-1].model_revision_digest == REVISION


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models/yours"])
def test_an_adapter_that_no_node_has_is_an_unknown_model(adapted: RunningGateway, path: str) -> None:
    """The message names those that there are."""
    reply = ask(adapted, path, {**COMPLETION, "model": "yours"} if path == "/v1/completions" else None)

    assert (reply.status, reply.body["error"]["code"]) == (404, "model_not_found")
    assert "`tiny`, `another`, `mine`" in reply.body["error"]["message"]
