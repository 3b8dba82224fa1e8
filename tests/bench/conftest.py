"""A fake server beside a command that has an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bench.fake_server import FakeServer, Script, fake_server


@pytest.fixture
def serving() -> Iterator[Any]:
    """Return a function that serves a script from a thread of its own, since main has a loop of its own."""
    stops: list[Any] = []

    def serve(script: Script) -> FakeServer:
        ready, box = threading.Event(), []

        async def run() -> None:
            stop = asyncio.Event()
            async with fake_server(script) as server:
                box.append((server, asyncio.get_running_loop(), stop))
                ready.set()
                await stop.wait()

        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        assert ready.wait(40)
        server, loop, stop = box[0]
        stops.append((thread, loop, stop))
        return server

    yield serve
    for thread, loop, stop in stops:
        loop.call_soon_threadsafe(stop.set)
        thread.join(40)
