"""A server whose connections are made anew from time to time."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.rpc.server import GrpcServer

SERVING = health_pb2.HealthCheckResponse.SERVING


class Peers(grpc.aio.ServerInterceptor):
    """Notes the connections that calls come on."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Wrap the handler of health checks."""
        handler = await continuation(details)

        async def check(request: object, context: Any) -> object:
            self.known.add(context.peer())
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            check, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )


def test_a_client_that_never_pauses_is_told_to_connect_anew_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is old after a fifth of a second; every call of it is answered."""

    async def run() -> None:
        peers = Peers()
        monkeypatch.setattr("baton.rpc.server.server_interceptors", lambda: (peers,))
        server = GrpcServer("127.0.0.1:0", is_public=True, connection_seconds=0.2)
        port = await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            async with asyncio.timeout(60):
                while len(peers.known) < 2:
                    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
        await server.drain(10.0)

    asyncio.run(run())
