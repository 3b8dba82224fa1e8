"""A machine that slept is noticed afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from agent.programs import run
from baton.agent.machine_sleep import LEAST_SLEEP_SECONDS, SleepWatch, unsleeping_clock


async def _told_after(pauses: Sequence[float]) -> list[float]:
    """Return what is told of pauses that took so long by a clock that goes on."""
    told: list[float] = []
    left, now = list(pauses), 0.0

    async def sleep(_seconds: float) -> None:
        nonlocal now
        if not left:
            raise asyncio.CancelledError
        now += left.pop(0)

    async def on_wake(seconds: float) -> None:
        told.append(seconds)

    with suppress(asyncio.CancelledError):
        await SleepWatch(on_wake, sleep=sleep, clock=lambda: now).run()
    return told


def test_each_sleep_is_told_once_with_its_length() -> None:
    """The pauses between are not part of it."""

    async def main() -> None:
        assert await _told_after([1.0, 1.0, 28_801.0, 1.0, 61.0]) == [28_800.0, 60.0]

    run(main)


def test_a_busy_machine_has_not_slept() -> None:
    """A few seconds' delay is none."""

    async def main() -> None:
        assert await _told_after([1.0, LEAST_SLEEP_SECONDS, 3.0]) == []

    run(main)


def test_the_clock_goes_on() -> None:
    """As every clock does."""
    before = unsleeping_clock()

    assert unsleeping_clock() >= before > 0
