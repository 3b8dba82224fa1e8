"""The gateway's side of the router."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton.errors import UnavailableError
from baton.gateway.router_client import NO_NODE, RouterClient
from baton.rpc.server import GrpcServer
from baton.v1.router_service_pb2 import PlaceRequest
from baton.v1.router_service_pb2_grpc import RouterServiceServicer, add_RouterServiceServicer_to_server


class SlowRouter(RouterServiceServicer):
    """Refuses the first placement, and answers no other."""

    def __init__(self) -> None:
        self.num_calls = 0

    async def Place(self, request: PlaceRequest, context: Any) -> Any:  # noqa: N802
        """Place."""
        self.num_calls += 1
        if self.num_calls == 1:
            raise UnavailableError("both nodes are full", reason=NO_NODE)
        await asyncio.Event().wait()


def test_a_refusal_is_not_forgotten_because_the_last_question_stayed_open() -> None:
    """A request that moves asks until its time is over; the error then tells what the router said last."""

    async def scenario() -> None:
        server = GrpcServer("127.0.0.1:0")
        server.add(
            "baton.v1.RouterService",
            lambda each: add_RouterServiceServicer_to_server(SlowRouter(), each),  # type: ignore[no-untyped-call]
        )
        client = RouterClient(f"127.0.0.1:{await server.start()}", timeout_seconds=0.5)
        try:
            with pytest.raises(UnavailableError, match="both nodes are full"):
                await client.place(PlaceRequest(excluded_node_ids=["decode-0"]))
        finally:
            await client.close()
            await server.drain(0)

    asyncio.run(scenario())
