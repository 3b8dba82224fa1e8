"""Compressed messages on a public port."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue

from baton.rpc.compression import compress_where_it_pays, writer_of
from baton.rpc.server import GrpcServer, PortLimits, PublicPort

METHOD = "/baton.v1.GenerationService/Generate"
"""A name that clients may call."""
LIMITS = PortLimits(request_bytes=100_000, has_gzip=True)
ONLY_PLAIN = (("grpc.compression_enabled_algorithms_bitset", 1),)


def _register(server: grpc.aio.Server) -> None:
    async def echo(request: Any, context: Any) -> None:
        await writer_of(context)(request)

    handler = grpc.unary_stream_rpc_method_handler(
        echo, request_deserializer=BytesValue.FromString, response_serializer=BytesValue.SerializeToString
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("baton.v1.GenerationService", {"Generate": handler}),)
    )


def answer(
    request: bytes, compression: grpc.Compression | None = None, options: Any = (), method: str = METHOD
) -> list[bytes]:
    """Return the answers to a request that is sent as it is given.

    Raises:
        grpc.aio.AioRpcError: If it is refused.
    """

    async def run() -> list[bytes]:
        server = GrpcServer("127.0.0.1:0", public=PublicPort(), limits=LIMITS)
        server.add("baton.v1.GenerationService", _register)
        port = await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                return [
                    each async for each in channel.unary_stream(method)(request, compression=compression, timeout=60)
                ]
        finally:
            await server.drain(0.0)

    return asyncio.run(run())


def _message(num_bytes: int) -> bytes:
    return BytesValue(value=b"x" * num_bytes).SerializeToString()


@pytest.mark.parametrize("num_bytes", [0, 10, 99_000])
@pytest.mark.parametrize("options", [(), ONLY_PLAIN], ids=["any", "plain"])
def test_what_is_sent_comes_back(num_bytes: int, options: Any) -> None:
    """Compressed or not, to clients that take compressed answers and to those that do not."""
    compressions = [None] if options else [None, grpc.Compression.Gzip]
    for compression in compressions:
        assert answer(_message(num_bytes), compression, options) == [_message(num_bytes)]


@pytest.mark.parametrize(
    ("request_bytes", "problem"),
    [
        (gzip.compress(b"\n" + b"\0" * 10_000_000, mtime=0), "request: expected 100000 bytes at most, inflated"),
        (gzip.compress(_message(9), mtime=0)[:-1], "request: its gzip ends early"),
        (b"\x1f\x8b" + b"\xff" * 20, "request: it is not valid gzip"),
    ],
    ids=["bomb", "cut", "damaged"],
)
def test_what_cannot_be_inflated_within_the_bound_is_refused(request_bytes: bytes, problem: str) -> None:
    """Ten megabytes that travel as ten thousand bytes are never held."""
    with pytest.raises(grpc.aio.AioRpcError, match=problem) as refusal:
        answer(request_bytes)

    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_coding_without_a_bound_is_not_taken() -> None:
    """Of deflate, nothing tells its messages from others."""
    with pytest.raises(grpc.aio.AioRpcError, match="deflate") as refusal:
        answer(_message(9), grpc.Compression.Deflate)

    assert refusal.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(("num_bytes", "is_left_plain"), [(100, True), (100_000, False), (200_000, True)])
def test_large_answers_are_not_compressed(num_bytes: int, is_left_plain: bool) -> None:
    """Of calls with one answer too: it would keep the event loop."""
    context = Mock()
    compress_where_it_pays(BytesValue(value=b"x" * num_bytes), context)

    assert context.disable_next_message_compression.called == is_left_plain


def test_health_takes_compressed_requests_too() -> None:
    """As clients send them that compress whatever they send."""
    assert answer(gzip.compress(b""), method="/grpc.health.v1.Health/Check") == [b"\x08\x01"]
