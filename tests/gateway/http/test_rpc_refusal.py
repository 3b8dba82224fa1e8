"""Clients of gRPC, gRPC-Web and Connect that were given the address of the REST port."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any
from urllib.parse import unquote

import grpc
import pytest

from baton.gateway.server import RunningGateway
from gateway.rest import Reply, ask

METHOD = "/baton.v1.GenerationService/ListModels"
SENTENCE = "is not served on the REST port; gRPC over HTTP/2 is, on the gRPC port (--grpc-port, by default 8001)"


@pytest.mark.parametrize(
    ("media_type", "name"),
    [
        ("application/grpc-web+proto", "gRPC-Web"),
        ("application/grpc-web-text", "gRPC-Web"),
        ("application/grpc", "gRPC"),
    ],
)
def test_grpc_web_is_refused_by_its_own_status(gateway: RunningGateway, media_type: str, name: str) -> None:
    """A browser's client shows the message of a status, and nothing of an answer of another type."""
    reply = _ask(gateway, media_type)

    assert (reply.status, reply.data) == (200, b"")
    assert (reply.headers["content-type"], reply.headers["grpc-status"]) == (media_type, "12")
    assert unquote(reply.headers["grpc-message"]).startswith(f"{name} {SENTENCE}")


def test_a_call_of_connect_is_refused_by_its_own_error(gateway: RunningGateway) -> None:
    """Whatever it sends, as the path says which service is meant."""
    for media_type in ("application/json", "application/proto"):
        reply = _ask(gateway, media_type)

        assert (reply.status, reply.body["code"]) == (501, "unimplemented")
        assert reply.body["message"].startswith(f"Connect {SENTENCE}")


def test_a_stream_of_connect_is_refused_by_its_last_envelope(gateway: RunningGateway) -> None:
    """Its status is always 200."""
    reply = _ask(gateway, "application/connect+proto")
    flags, num_bytes = struct.unpack(">BI", reply.data[:5])

    assert (reply.status, reply.headers["content-type"]) == (200, "application/connect+proto")
    assert (flags, num_bytes) == (2, len(reply.data) - 5)
    assert json.loads(reply.data[5:])["error"]["message"].startswith(f"Connect {SENTENCE}")


def test_a_client_of_grpc_shows_the_sentence(gateway: RunningGateway) -> None:
    """It speaks HTTP/2 without asking. A connection that ended before its call would be made again, for ever."""

    async def call() -> Any:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{gateway.http_port}") as channel:
            await channel.unary_unary(METHOD)(b"", timeout=20)

    with pytest.raises(grpc.aio.AioRpcError) as failure:
        asyncio.run(call())

    assert failure.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert f"HTTP/2 {SENTENCE}" in (failure.value.details() or "")


def _ask(gateway: RunningGateway, media_type: str) -> Reply:
    return ask(gateway, METHOD, {}, headers={"content-type": media_type})
