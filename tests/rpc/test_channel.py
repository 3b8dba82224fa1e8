"""Channels to servers that are far away, or busy."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer
from decode.kv_stream.faulty_link import FaultyLink

TIMEOUT_SECONDS = 60.0
GREETING_SECONDS = 0.3
NUM_TRIES = 5
"""Channels of which one is enough: what disturbs a busy machine may disturb one of them."""


class LateLink(FaultyLink):
    """Lets nothing through at first."""

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(GREETING_SECONDS)
        await super()._forward(reader, writer)


def test_a_server_that_takes_a_while_to_greet_is_waited_for() -> None:
    """As over a long way with TLS, or on a machine that has other work; the first call does not fail."""

    async def run() -> list[grpc.StatusCode]:
        server, codes = GrpcServer("127.0.0.1:0"), list[grpc.StatusCode]()
        async with LateLink(await server.start()) as link:
            while len(codes) < NUM_TRIES and grpc.StatusCode.OK not in codes:
                codes.append(await _code(f"127.0.0.1:{link.port}"))
        await server.drain(0)
        return codes

    assert grpc.StatusCode.OK in asyncio.run(asyncio.wait_for(run(), TIMEOUT_SECONDS))


async def _code(address: str) -> grpc.StatusCode:
    async with open_channel(address, is_dedicated=True) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK
