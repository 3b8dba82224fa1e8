"""Notices that the machine slept, on every system: a clock that goes on meanwhile went on further than a pause."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

INTERVAL_SECONDS = 1.0
LEAST_SLEEP_SECONDS = 10.0
"""A gap that is shorter may be a busy machine; connections outlast it."""


def unsleeping_clock() -> float:
    """Return seconds by a clock that goes on while the machine sleeps; `time.monotonic` stands still then."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # macOS: that of mach_continuous_time


class SleepWatch:
    """Tells of each sleep, and of each time that this process was stopped, once it is over.

    Args:
        on_wake: Told for how many seconds.
        sleep: Waits.
        clock: Seconds.
    """

    def __init__(
        self,
        on_wake: Callable[[float], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = unsleeping_clock,
    ) -> None:
        self._on_wake = on_wake
        self._sleep = sleep
        self._clock = clock

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        while True:
            before = self._clock()
            await self._sleep(INTERVAL_SECONDS)
            gap = self._clock() - before - INTERVAL_SECONDS
            if gap >= LEAST_SLEEP_SECONDS:
                await self._on_wake(gap)
