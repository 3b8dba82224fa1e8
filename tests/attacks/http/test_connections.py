"""Finding 10, its second half: connections are bounded by nothing, and those in their handshake not even counted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from attacks.http.door import SECONDS, HttpDoor, open_gateway
from attacks.victims import IS_FORMER, full
from baton.gateway.http.connection import HttpLimits
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse
from baton.gateway.http.server import HttpServer

LIMITS = HttpLimits(1 << 20, 0.3, *([60.0] * 3), 0.0, max_connections=6, max_address_connections=4)
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class _Handler:
    def is_body_wanted(self, _request: HttpRequest) -> bool:
        return True

    async def handle(self, _request: HttpRequest, response: HttpResponse) -> None:
        response.send(200, b"{}")


Connect = Callable[..., Awaitable[bool]]


def _run(scenario: Callable[[int], Awaitable[None]], limits: HttpLimits, tls: ssl.SSLContext | None = None) -> None:
    async def run() -> None:
        async with asyncio.timeout(SECONDS), HttpServer(_Handler(), lambda _error: b"", limits) as server:
            await scenario(await server.start("127.0.0.1", 0, tls=tls))

    asyncio.run(run())


def _from(host: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS, source_address=(host, 0))


async def _is_served(connection: socket.socket) -> bool:
    """Return whether a request on a connection is answered."""
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(connection, GET)
        return bool(await loop.sock_recv(connection, 4096))
    except ConnectionError:
        return False


def test_connections_are_bounded_in_all_and_of_an_address() -> None:
    """Those beyond are closed; others get in as soon as one has gone."""

    async def scenario(port: int) -> None:
        with contextlib.ExitStack() as opened:
            held = [opened.enter_context(_from("127.0.0.1", port)) for _ in range(4)]
            assert [await _is_served(each) for each in held] == [True] * 4
            assert not await _is_served(opened.enter_context(_from("127.0.0.1", port)))
            for index in (2, 3):
                assert await _is_served(opened.enter_context(_from(f"127.0.0.{index}", port)))
            assert not await _is_served(opened.enter_context(_from("127.0.0.4", port)))
            held[0].close()
            while not await _is_served(opened.enter_context(_from("127.0.0.1", port))):
                pass

    _run(scenario, replace(LIMITS, header_timeout_seconds=SECONDS))


def test_a_handshake_counts_and_cannot_be_stretched() -> None:
    """Four clients drip: the next of their address is closed until their time is over."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    async def scenario(port: int) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as opened:
            held = [opened.enter_context(_from("127.0.0.1", port)) for _ in range(4)]
            for connection in held:
                await loop.sock_sendall(_unblocked(connection), b"\x16\x03\x01\x10\x00")
            refused = _unblocked(opened.enter_context(_from("127.0.0.1", port)))
            with contextlib.suppress(ConnectionError):
                assert await loop.sock_recv(refused, 1) == b""
            began, open_ones = time.monotonic(), set(held)
            while open_ones:
                for connection in list(open_ones):
                    try:
                        await loop.sock_sendall(connection, b"\x00")
                    except ConnectionError:
                        open_ones.discard(connection)
                await asyncio.sleep(0.02)
                assert time.monotonic() - began < SECONDS / 2
            is_trusting = ssl.create_default_context()
            is_trusting.check_hostname, is_trusting.verify_mode = False, ssl.CERT_NONE
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=is_trusting)
            writer.close()

    _run(scenario, LIMITS, context)


def _unblocked(connection: socket.socket) -> socket.socket:
    connection.setblocking(False)
    return connection


@pytest.fixture
def door(model_dir: Path, tmp_path: Path) -> Iterator[HttpDoor]:
    """Run a gateway that takes 500 connections, of one address 200."""
    limits = {} if IS_FORMER else {"max_connections": "500", "max_address_connections": "200"}
    with open_gateway(model_dir, tmp_path, **limits) as door:
        yield door


@full
def test_a_crowd_of_one_address_keeps_nobody_else_out(door: HttpDoor) -> None:
    """2000 connections that say nothing."""
    with contextlib.ExitStack() as opened, door.damage() as damage:
        crowd = [opened.enter_context(_from("127.0.0.2", door.port)) for _ in range(2000)]
        door.ask()
        time.sleep(1)
        is_open = []
        for connection in crowd:
            connection.setblocking(False)
            try:
                is_open.append(bool(connection.recv(1)))
            except BlockingIOError:
                is_open.append(True)
            except ConnectionError:
                is_open.append(False)
    print(f"{sum(is_open)} of 2000 connections open: {damage}")

    assert sum(is_open) == 200
