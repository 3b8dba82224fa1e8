"""Requests that are no messages, over a real channel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

import grpc
import pytest

from baton.internal.v1 import cache_index_service_pb2 as messages
from baton.internal.v1 import cache_index_service_pb2_grpc as service
from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer
from baton.rpc.status import error_info

_TIMEOUT_SECONDS = 20.0
_BAD_BYTES = b"\xff\xff"


class _Index(service.CacheIndexServiceServicer):
    async def Publish(self, request_iterator: AsyncIterator[object], context: object) -> AsyncIterator[object]:  # noqa: N802
        async for _ in request_iterator:
            yield messages.PublishResponse()

    async def Lookup(self, request: object, context: object) -> object:  # noqa: N802
        return messages.LookupResponse()


async def _call(make_call: Callable[[grpc.aio.Channel], AsyncIterator[object]]) -> list[object]:
    server = GrpcServer("127.0.0.1:0")
    server.add(
        "baton.internal.v1.CacheIndexService", partial(service.add_CacheIndexServiceServicer_to_server, _Index())
    )
    port = await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel, asyncio.timeout(_TIMEOUT_SECONDS):
            return [response async for response in make_call(channel)]
    finally:
        await server.drain(0)


async def _lookup(data: bytes, channel: grpc.aio.Channel) -> AsyncIterator[object]:
    yield await channel.unary_unary("/baton.internal.v1.CacheIndexService/Lookup")(data)


async def _publish(data: bytes, channel: grpc.aio.Channel) -> AsyncIterator[object]:
    async for response in channel.stream_stream("/baton.internal.v1.CacheIndexService/Publish")(iter((b"", data))):
        yield response


@pytest.mark.parametrize("make_call", [_lookup, _publish])
def test_bytes_that_are_no_message_are_refused(
    make_call: Callable[[bytes, grpc.aio.Channel], AsyncIterator[object]], caplog: pytest.LogCaptureFixture
) -> None:
    """INVALID_ARGUMENT with ErrorInfo, as a single request or amid a stream, and no traceback in the log."""
    with caplog.at_level(logging.WARNING), pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(_call(partial(make_call, _BAD_BYTES)))

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (info := error_info(caught.value)) is not None
    assert (info.reason, dict(info.metadata)) == ("INVALID_FIELD", {"field": "request"})
    assert [record for record in caplog.records if record.name.startswith(("baton", "grpc"))] == []


@pytest.mark.parametrize("make_call", [_lookup, _publish])
def test_messages_arrive(make_call: Callable[[bytes, grpc.aio.Channel], AsyncIterator[object]]) -> None:
    """A valid request reaches the servicer."""
    assert asyncio.run(_call(partial(make_call, b"")))
