"""The gateway's side of the router."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton.errors import BatonError, NotFoundError, UnavailableError
from baton.gateway.cluster.router_client import NO_NODE, RouterClient
from baton.gateway.generation.preparation import ContextLengthError
from baton.internal.v1.router_service_pb2 import Placement, PlaceRequest, PlaceResponse
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


def place(router: ScriptedRouter, request: PlaceRequest, *, timeout_seconds: float = 10.0) -> PlaceResponse:
    """Ask a router for a placement."""

    async def ask() -> PlaceResponse:
        server = GrpcServer("127.0.0.1:0")
        server.add(
            "baton.internal.v1.RouterService",
            lambda each: add_RouterServiceServicer_to_server(router, each),  # type: ignore[no-untyped-call]
        )
        client = RouterClient(f"127.0.0.1:{await server.start()}", timeout_seconds=timeout_seconds)
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
        place(router, PlaceRequest(excluded_node_ids=["decode-0"]), timeout_seconds=1.0)


def test_a_router_that_does_not_know_the_nodes_yet_is_asked_again() -> None:
    """The gateway asks for models that nodes have served: a router that has just started will know them soon."""
    router = ScriptedRouter(NotFoundError("no node serves it"), is_slow=False)

    assert place(router, PlaceRequest()).placement.decode_node_id == "decode-0"


def test_a_model_whose_nodes_stay_away_is_unavailable() -> None:
    """It exists, so the client may try again later."""
    router = ScriptedRouter(NotFoundError("no node serves it"), is_slow=True)

    with pytest.raises(UnavailableError, match="no node serves it") as caught:
        place(router, PlaceRequest(), timeout_seconds=1.0)
    assert caught.value.reason == NO_NODE


def test_a_request_that_such_a_pool_has_no_room_for_hears_of_the_pool() -> None:
    """Not that the model is small; the error stays that of the context's length."""
    bound = "The KV pool of node d holds 256 tokens, fewer than the 4096 that the model takes."
    error = ContextLengthError("prompt", 256, (200, 100), bound)

    assert error.problem.startswith(f"{bound} However, you requested 300 tokens (200 in the prompt, 100 in")
    assert error.renamed("messages").problem.startswith(bound)
    assert "maximum context length is 256" in ContextLengthError("prompt", 256, (200, 100)).problem
