"""A fake server beside a command that has an event loop of its own, and benchmarks whose children run here."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from bench.engines import gpu
from bench.kv import tiers
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


@pytest.fixture
def children_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run the child of a benchmark in this process, which has imported its frameworks: a start takes seconds."""

    def answers_of(command: Sequence[str]) -> Iterator[dict[str, Any]]:
        _, flag, module, *arguments = command
        assert flag == "-m"
        monkeypatch.setattr(sys, "argv", [module, *arguments])
        monkeypatch.delitem(sys.modules, module, raising=False)
        with suppress(SystemExit):
            runpy.run_module(module, run_name="__main__")
        yield from (json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{"))

    for bench in (gpu, tiers):
        monkeypatch.setattr(bench, "answers_of", answers_of)
