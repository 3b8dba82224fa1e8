"""The gateway's side of the router."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import BatonError, NotFoundError, UnavailableError
from baton.gateway.cluster.router_client import NO_NODE, ModelCatalog, RouterClient, describe
from baton.gateway.generation.preparation import ContextLengthError
from baton.internal.v1 import node_pb2
from baton.internal.v1.router_service_pb2 import NodeState, Placement, PlaceRequest, PlaceResponse
from baton.internal.v1.router_service_pb2_grpc import RouterServiceServicer, add_RouterServiceServicer_to_server
from baton.rpc.server import GrpcServer


class ScriptedRouter(RouterServiceServicer):
    """Refuses the first placement with an error, and then either places or does not answer."""

    def __init__(self, error: BatonError, *, is_slow: bool) -> None:
        self.error: BatonError | None = error
        self.is_slow = is_slow

    async def Place(self, request: PlaceRequest, context: Any) -> PlaceResponse:  # noqa: N802
        """Place."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        if self.is_slow:
            await asyncio.Event().wait()
        return PlaceResponse(placement=Placement(decode_node_id="decode-0"))


def place(router: ScriptedRouter, request: PlaceRequest) -> PlaceResponse:
    """Ask a router for a placement, for three seconds at most."""

    async def ask() -> PlaceResponse:
        server = GrpcServer("127.0.0.1:0")
        server.add(
            "baton.internal.v1.RouterService",
            lambda each: add_RouterServiceServicer_to_server(router, each),  # type: ignore[no-untyped-call]
        )
        client = RouterClient(f"127.0.0.1:{await server.start()}", timeout_seconds=3.0)
        try:
            return await client.place(request)
        finally:
            await client.close()
            await server.drain(0)

    return asyncio.run(ask())


def test_a_refusal_is_not_forgotten_because_the_last_question_stayed_open() -> None:
    """A request that moves asks until its time is over; the error then tells what the router said last."""
    router = ScriptedRouter(UnavailableError("both nodes are full", reason=NO_NODE), is_slow=True)

    with pytest.raises(UnavailableError, match="both nodes are full"):
        place(router, PlaceRequest(excluded_node_ids=["decode-0"]))


def test_a_router_that_does_not_know_the_nodes_yet_is_asked_again() -> None:
    """The gateway asks for models that nodes have served: a router that has just started will know them soon."""
    router = ScriptedRouter(NotFoundError("no node serves it"), is_slow=False)

    assert place(router, PlaceRequest()).placement.decode_node_id == "decode-0"


def test_a_model_whose_nodes_stay_away_is_unavailable() -> None:
    """It exists, so the client may try again later."""
    router = ScriptedRouter(NotFoundError("no node serves it"), is_slow=True)

    with pytest.raises(UnavailableError, match="no node serves it") as caught:
        place(router, PlaceRequest())
    assert caught.value.reason == NO_NODE


def test_one_look_that_fails_tells_clients_nothing() -> None:
    """Requests that come meanwhile are placed a moment later; the second one in a row is told."""

    async def problems() -> list[str]:
        silence = UnavailableError("no router")
        looks: list[Exception | None] = [silence, None, silence, None, silence, silence]
        node = node_pb2.NodeDescription(node_id="decode-0", role=node_pb2.NODE_ROLE_DECODE, model_id="m")

        async def look() -> list[NodeState]:
            if (error := looks.pop(0)) is not None:
                raise error
            return [NodeState(node=node)]

        router: Any = SimpleNamespace(list_node_states=look)
        catalog = ModelCatalog(router, model_name="m", tokenizer_digest="", poll_seconds=1.0)
        told = []
        while looks:
            await catalog.refresh()
            told.append(catalog.problem)
        return told

    assert asyncio.run(problems()) == ["no router", "", "", "", "", "no router"]


@pytest.mark.parametrize(("own_tokens", "is_bound"), [(0, False), (256, False), (4096, True)])
def test_a_pool_that_is_smaller_than_the_models_context_is_told_of(own_tokens: int, is_bound: bool) -> None:
    """With its cause and the remedy; a node of another version does not tell the model's own."""
    node = node_pb2.NodeDescription(
        node_id="decode-0",
        role=node_pb2.NODE_ROLE_DECODE,
        model_id="m",
        model_shape=node_pb2.ModelShape(max_context_token_count=256),
        model_context_token_count=own_tokens,
        block_count_cause="num_blocks says so",
    )

    model = describe("m", [node])

    assert model is not None
    assert model.max_context_tokens == 256
    assert model.context_bound == (
        "The KV pool of node decode-0 holds 256 tokens (num_blocks says so), fewer than the 4096 that the model takes; "
        "a larger --num-blocks there raises it."
        if is_bound
        else ""
    )


def test_a_request_that_such_a_pool_has_no_room_for_hears_of_the_pool() -> None:
    """Not that the model is small; the error stays that of the context's length."""
    bound = "The KV pool of node d holds 256 tokens, fewer than the 4096 that the model takes."
    error = ContextLengthError("prompt", 256, (200, 100), bound)

    assert error.problem.startswith(f"{bound} However, you requested 300 tokens (200 in the prompt, 100 in")
    assert error.renamed("messages").problem.startswith(bound)
    assert "maximum context length is 256" in ContextLengthError("prompt", 256, (200, 100)).problem
