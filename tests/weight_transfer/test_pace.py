"""The rate of transfers beside requests."""

from __future__ import annotations

import asyncio

from baton.weight_transfer.pace import Pace


def test_transfers_share_a_rate_while_it_is_needed() -> None:
    """Time that nobody used is not made up for; without need nobody waits."""
    waited: list[float] = []
    now, is_needed = 0.0, True

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def scenario() -> None:
        nonlocal now, is_needed
        pace = Pace(100, lambda: is_needed, sleep=sleep, clock=lambda: now)
        await pace.spend(50)
        await pace.spend(100)
        now = 10.0
        await pace.spend(50)
        is_needed = False
        await pace.spend(1000)
        is_needed = True
        await pace.spend(50)
        await Pace(0, sleep=sleep).spend(50)

    asyncio.run(scenario())

    assert waited == [0.5, 1.5, 0.5, 0.5]
