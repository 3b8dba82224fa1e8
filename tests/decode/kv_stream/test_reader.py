"""How many frames a stream may have read before the engine has written them."""

from __future__ import annotations

import asyncio

from baton.decode.kv_stream.reader import FrameWindow
from baton.decode.kv_stream.receive_budget import usual_budget


def test_small_frames_do_not_wait_for_each_other() -> None:
    """A prompt's frames, 256 MiB, enter before the engine has written any: what comes during a pass is no bound."""

    async def enter_many() -> list[bool]:
        window = FrameWindow(usual_budget())
        return [await window.enter(1 << 19) for _ in range(512)]

    assert not any(asyncio.run(asyncio.wait_for(enter_many(), 5)))


def test_a_frame_without_room_enters_when_the_first_has_landed() -> None:
    """A stream has a quarter of the node's credit, and one that waits says so."""

    async def enter_beyond_room() -> tuple[bool, bool]:
        budget = usual_budget()
        window = FrameWindow(budget)
        for _ in range(8):
            await window.enter(budget.max_bytes // 32)
        waiting = asyncio.create_task(window.enter(1))
        await asyncio.sleep(0)
        is_held = not waiting.done()
        window.landed()
        return is_held, await waiting

    assert asyncio.run(asyncio.wait_for(enter_beyond_room(), 5)) == (True, True)


def test_what_has_landed_is_given_back_once() -> None:
    """With the rest at the end: credit that is given back twice would let in more than there is memory for."""

    async def credit() -> tuple[int, int]:
        budget = usual_budget()
        window = FrameWindow(budget)
        for num_bytes in (1000, 200, 30):
            await window.enter(num_bytes)
        window.landed()
        left = budget.num_bytes
        window.close()
        return left, budget.num_bytes

    assert asyncio.run(credit()) == (230, 0)
