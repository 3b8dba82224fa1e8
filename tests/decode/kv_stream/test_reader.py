"""How many frames a stream may have read before the engine has written them, and for how long it may be silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from baton.decode.kv_stream.reader import FrameWindow, SilentStreamError, Timeouts, timed
from baton.internal.v1.prefill_service_pb2 import FirstToken, PrefillResponse
from decode.pair import usual_budget

SHORT = Timeouts(first_frame_seconds=0.1, frame_seconds=0.1)


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


async def _messages(*pauses: float) -> AsyncIterator[PrefillResponse]:
    for pause in pauses:
        await asyncio.sleep(pause)
        yield PrefillResponse(first_token=FirstToken())


async def _count(messages: AsyncIterator[PrefillResponse]) -> int:
    return len([message async for message in messages])


def test_a_silent_stream_breaks() -> None:
    """Before its first message, and between two."""
    for pauses in ((5.0,), (0.0, 5.0)):
        with pytest.raises(SilentStreamError, match=r"silent for 0\.1 seconds"):
            asyncio.run(_count(timed(_messages(*pauses), SHORT)))


@pytest.mark.parametrize(("called", "is_waited_for"), [(9.0, True), (11.0, False)])
def test_who_waits_for_earlier_streams_is_not_silent(called: float, is_waited_for: bool) -> None:
    """A busy link carries the earliest stream first; that others who came later have frames is no reason to wait."""
    budget = usual_budget()

    async def receive() -> int:
        async def hear() -> None:
            while True:
                budget.heard.append((called, time.perf_counter()))
                await asyncio.sleep(0.02)

        others = asyncio.create_task(hear())
        try:
            return await _count(timed(_messages(0.0, 0.4), SHORT, heard_seconds=partial(budget.heard_seconds, 10.0)))
        finally:
            others.cancel()

    if is_waited_for:
        assert asyncio.run(receive()) == 2
    else:
        with pytest.raises(SilentStreamError):
            asyncio.run(receive())
