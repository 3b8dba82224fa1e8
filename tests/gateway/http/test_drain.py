"""A server that goes says so before it closes a connection under a request."""

from __future__ import annotations

import asyncio

from baton.gateway.http.connection import HttpLimits
from baton.gateway.http.messages import HttpRequest
from baton.gateway.http.response import HttpResponse
from baton.gateway.http.server import HttpServer

LIMITS = HttpLimits(1 << 20, *([60.0] * 4), 0.0)
LONG_SECONDS = 600.0
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Client:
    """A connection that is kept alive, whose user sends without looking."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Client:
        """Connect."""
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self) -> bytes:
        """Return the head of an answer."""
        self._writer.write(REQUEST)
        head = await self._reader.readuntil(b"\r\n\r\n")
        await self._reader.readexactly(2)
        return head

    async def until_closed(self) -> bytes:
        """Return what comes until the server closes the connection."""
        rest = await self._reader.read()
        self._writer.close()
        return rest


class _Handler:
    def is_body_wanted(self, _request: HttpRequest) -> bool:
        return True

    async def handle(self, _request: HttpRequest, response: HttpResponse) -> None:
        response.send(200, b"{}")


def _run(test: object) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), HttpServer(_Handler(), lambda _error: b"", LIMITS) as server:
            await server.start("127.0.0.1", 0)
            await test(server)  # type: ignore[operator]

    asyncio.run(run())


def test_while_a_server_goes_every_answer_ends_its_connection() -> None:
    """Of those that were open, and of new ones: who asks is answered, and told not to ask here again."""

    async def scenario(server: HttpServer) -> None:
        old = await Client.to(server.port)
        assert b"connection: close" not in await old.ask()
        draining = asyncio.create_task(server.drain(LONG_SECONDS, pause_seconds=LONG_SECONDS))
        await asyncio.sleep(0)
        new = await Client.to(server.port)

        for client in (old, new):
            assert b"connection: close" in await client.ask()
            assert await client.until_closed() == b""
        draining.cancel()

    _run(scenario)


def test_idle_connections_are_closed_after_the_pause() -> None:
    """Nobody waits for a client that says nothing."""

    async def scenario(server: HttpServer) -> None:
        idle = await Client.to(server.port)
        await idle.ask()

        await asyncio.gather(server.drain(LONG_SECONDS, pause_seconds=0.0), idle.until_closed())

    _run(scenario)
