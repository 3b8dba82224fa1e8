"""Bodies of requests are bounded over all connections, from their arrival to the end of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from baton.errors import OverloadedError
from baton.gateway.http.connection import HttpLimits
from baton.gateway.http.messages import HeldBytes, HttpRequest
from baton.gateway.http.response import HttpResponse
from baton.gateway.http.server import HttpServer

LIMITS = HttpLimits(1 << 20, *([60.0] * 4), 0.0)


def test_bytes_beyond_the_bound_are_refused_unless_they_are_alone() -> None:
    """A body that is larger than the bound could never be served otherwise."""
    held = HeldBytes(100)
    with held.holding(150), pytest.raises(OverloadedError, match="150 bytes of requests are in work"):
        held.take(1)

    held.take(60)
    held.take(40)

    assert held.num_bytes == 100


class Scene:
    """A server whose handler waits, and its clients."""

    def __init__(self) -> None:
        self.held = HeldBytes(100)
        self.may_answer = asyncio.Event()
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    def is_body_wanted(self, _request: HttpRequest) -> bool:
        """Return that it is."""
        return True

    async def handle(self, _request: HttpRequest, response: HttpResponse) -> None:
        """Answer when that may be."""
        await self.may_answer.wait()
        response.send(200, b"{}")

    async def send(self, head: str, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a request from a new client."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(f"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{head}\r\n\r\n".encode() + body)
        return reader, writer

    async def until_held(self, num_bytes: int) -> None:
        """Wait until so many bytes are held."""
        while self.held.num_bytes != num_bytes:  # noqa: ASYNC110 - the server is on this loop
            await asyncio.sleep(0)

    def close(self) -> None:
        """Let every client go."""
        for writer in self._writers:
            writer.close()


def _run(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene()
        async with (
            asyncio.timeout(60),
            HttpServer(scene, lambda error: error.message.encode(), LIMITS, scene.held) as server,
        ):
            scene.port = await server.start("127.0.0.1", 0)
            await scenario(scene)
            scene.close()
            await scene.until_held(0)

    asyncio.run(run())


def test_a_request_has_its_room_from_its_arrival_to_its_answer() -> None:
    """What is announced takes none, for it may never come; whoever finds none left is told to come again."""

    async def scenario(scene: Scene) -> None:
        await scene.send("Content-Length: 90", b"x" * 10)
        await scene.until_held(10)
        served, _ = await scene.send("Content-Length: 60", b"x" * 60)
        await scene.until_held(70)
        refused, _ = await scene.send("Content-Length: 40", b"")
        refusal = await refused.read()
        scene.may_answer.set()

        assert refusal.startswith(b"HTTP/1.1 429 ")
        assert b"70 bytes of requests are in work" in refusal
        assert (await served.read()).startswith(b"HTTP/1.1 200 ")
        await scene.until_held(10)

    _run(scenario)


def test_a_body_without_a_length_counts_as_it_comes() -> None:
    """Chunk by chunk; what a client that goes has sent is given back."""

    async def scenario(scene: Scene) -> None:
        _, writer = await scene.send("Transfer-Encoding: chunked", b"32\r\n" + b"x" * 50 + b"\r\n")
        await scene.until_held(50)

        writer.close()

        await scene.until_held(0)

    _run(scenario)
