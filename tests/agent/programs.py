"""Small programs to supervise, and how tests wait for them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from baton.agent.child import ChildSpec

TIMEOUT_SECONDS = 60.0
FOREVER = "print('ready'); import time; time.sleep(60)"
"""Says that it is ready, then runs until it is stopped; SIGTERM ends it."""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)"
"""The same, deaf to SIGTERM."""


def program(name: str, code: str) -> ChildSpec:
    """Return a child that runs Python code."""
    return ChildSpec(name, (sys.executable, "-c", code))


class Lines(list[tuple[str, str]]):
    """Collects lines of children and lets a test wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived = asyncio.Event()

    def __call__(self, name: str, line: str) -> None:
        """Take a line."""
        self.append((name, line))
        self._arrived.set()

    async def wait_for(self, name: str, line: str) -> None:
        """Return when the child has written the line."""
        while (name, line) not in self:
            self._arrived.clear()
            await self._arrived.wait()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine with a deadline."""

    async def limited() -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await main()

    asyncio.run(limited())
