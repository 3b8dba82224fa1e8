"""Items that other threads have for the event loop."""

from __future__ import annotations

import asyncio
import threading

from baton.node.cluster.publication import LoopFeeder

WAIT_SECONDS = 60.0
NUM_TURNS = 10
"""LoopFeeder of the loop that suffice for everything that waits."""


def test_the_loop_gets_to_other_work_between_two_items() -> None:
    """However many have come before it looked."""

    async def scenario() -> list[list[int]]:
        taken: list[int] = []
        turns = LoopFeeder(asyncio.get_running_loop(), taken.append)
        thread = threading.Thread(target=lambda: [turns.put(number) for number in range(5)])
        thread.start()
        thread.join(WAIT_SECONDS)
        seen = [list(taken)]
        while len(taken) < 5:
            await asyncio.sleep(0)
            if seen[-1] != taken:
                seen.append(list(taken))
        turns.put(5)
        for _ in range(NUM_TURNS):
            await asyncio.sleep(0)
        return [*seen, taken]

    assert asyncio.run(asyncio.wait_for(scenario(), WAIT_SECONDS)) == [list(range(number)) for number in range(7)]


def test_an_item_that_cannot_be_taken_leaves_the_others() -> None:
    """The loop reports it."""

    async def scenario() -> tuple[list[float], list[str]]:
        loop, taken, reported = asyncio.get_running_loop(), list[float](), list[str]()
        loop.set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
        turns = LoopFeeder[int](loop, lambda number: taken.append(1 / number))
        for number in (1, 0, 2):
            turns.put(number)
        for _ in range(NUM_TURNS):
            await asyncio.sleep(0)
        return taken, reported

    taken, reported = asyncio.run(asyncio.wait_for(scenario(), WAIT_SECONDS))

    assert taken == [1.0, 0.5]
    assert ["ZeroDivisionError" in each for each in reported] == [True]


def test_what_comes_after_the_loop_is_dropped() -> None:
    """An engine's threads may outlive it."""
    loop, taken = asyncio.new_event_loop(), list[int]()
    turns = LoopFeeder(loop, taken.append)
    loop.close()

    turns.put(1)

    assert taken == []
