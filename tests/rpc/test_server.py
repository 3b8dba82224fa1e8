"""A server whose connections are made anew from time to time."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from baton.grpc_sockets.frames import PREFACE, FrameType, pack_header, settings_frame, unpack_header
from baton.internal.v1.health_list_pb2 import HealthList
from baton.rpc.server import GrpcServer, PortLimits, PublicPort

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
        monkeypatch.setattr("baton.rpc.server.server_interceptors", lambda _address: (peers,))
        server = GrpcServer("127.0.0.1:0", public=PublicPort(), limits=PortLimits(connection_seconds=0.2))
        port = await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            async with asyncio.timeout(60):
                while len(peers.known) < 2:
                    assert (await stub.Check(health_pb2.HealthCheckRequest())).status == SERVING
        await server.drain(10.0)

    asyncio.run(run())


def test_keepalives_between_calls_are_no_strikes() -> None:
    """A client without calls may ping as often as one with them; gRPC would take one ping in two hours."""

    async def run() -> None:
        limits = PortLimits(ping_milliseconds=0, num_ping_strikes=1)
        server = GrpcServer("127.0.0.1:0", public=PublicPort(), limits=limits)
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start())
        writer.write(PREFACE + settings_frame({}))
        async with asyncio.timeout(60):
            for _ in range(5):
                writer.write(pack_header(8, FrameType.PING, 0, 0) + bytes(8))
                frame_type = None
                while frame_type != FrameType.PING:
                    frame = unpack_header(await reader.readexactly(9))
                    await reader.readexactly(frame.num_bytes)
                    frame_type = frame.frame_type
                    assert frame_type != FrameType.GOAWAY
        writer.close()
        await server.drain(10.0)

    asyncio.run(run())


def test_health_is_listed_and_both_reflections_answer() -> None:
    """grpc.health.v1 has List since 2024; buf curl asks for reflection v1 alone."""

    async def run() -> None:
        server = GrpcServer("127.0.0.1:0", public=PublicPort())
        server.add("baton.v1.GenerationService", lambda _: None)
        port = await server.start(is_serving=False)
        server.set_serving(False, is_alive=True)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary("/grpc.health.v1.Health/List", response_deserializer=HealthList.FromString)
            statuses = (await ask(b"")).statuses
            assert {name: state.status for name, state in statuses.items()} == {"": 1, "baton.v1.GenerationService": 2}
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            for version in ("v1", "v1alpha"):
                reflect = channel.stream_stream(
                    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                    request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                    response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
                )
                async for answer in reflect(iter([request])):
                    names = {service.name for service in answer.list_services_response.service}
                    assert "baton.v1.GenerationService" in names
            server.set_serving(True)
            server._health.stop()
            statuses = (await ask(b"")).statuses
            assert {state.status for state in statuses.values()} == {2}
        await server.drain(1.0)

    asyncio.run(run())
