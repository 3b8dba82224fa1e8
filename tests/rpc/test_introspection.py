"""Health, as those see it who watch it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.rpc.server import GrpcServer, PublicPort

NAME = "baton.v1.GenerationService"
UNKNOWN, SERVING, NOT_SERVING = 3, 1, 2


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[GrpcServer, health_pb2_grpc.HealthStub]]:
    """Run a server with one service, and yield it with a client."""
    server = GrpcServer("127.0.0.1:0", public=PublicPort())
    server.add(NAME, lambda _: None)
    port = await server.start()
    async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield server, health_pb2_grpc.HealthStub(channel)
    await server.drain(0.0)


def watch(stub: health_pb2_grpc.HealthStub, name: str = NAME) -> AsyncIterator[health_pb2.HealthCheckResponse]:
    """Return what is told of a service's health."""
    return aiter(stub.Watch(health_pb2.HealthCheckRequest(service=name)))


def test_a_watcher_hears_of_changes_after_another_has_left() -> None:
    """As where one of two load balancers goes; grpcio's own servicer tells nobody any more."""

    async def run() -> None:
        async with serving() as (server, stub):
            leaving = stub.Watch(health_pb2.HealthCheckRequest(service=NAME))
            staying = watch(stub)
            assert (await leaving.read()).status == (await anext(staying)).status == SERVING
            leaving.cancel()
            await stub.Check(health_pb2.HealthCheckRequest())  # the cancellation has been there before it
            server.set_serving(False)

            assert (await anext(staying)).status == NOT_SERVING

    asyncio.run(run())


def test_a_drain_tells_watchers_and_does_not_wait_for_them() -> None:
    """Whatever is set meanwhile; a watch would else last for the whole of the grace."""

    async def run() -> None:
        async with serving() as (server, stub):
            watching = watch(stub)
            assert (await anext(watching)).status == SERVING
            draining = asyncio.create_task(server.drain(600.0))

            assert (await anext(watching)).status == NOT_SERVING
            server.set_serving(True)
            assert [each async for each in watching] == []
            await draining

    asyncio.run(run())


def test_a_service_that_is_not_there_is_unknown_until_it_is() -> None:
    """The protocol has a watcher wait; a check names what there is."""

    async def run() -> None:
        async with serving() as (server, stub):
            watching = watch(stub, "later")
            assert (await anext(watching)).status == UNKNOWN
            server.set_health("later", is_serving=True)
            assert (await anext(watching)).status == SERVING
            with pytest.raises(grpc.aio.AioRpcError, match=f"expected one of '{NAME}', '', 'later'") as refusal:
                await stub.Check(health_pb2.HealthCheckRequest(service="other"))
            assert refusal.value.code() is grpc.StatusCode.NOT_FOUND

    asyncio.run(run())
