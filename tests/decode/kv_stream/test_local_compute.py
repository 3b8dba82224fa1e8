"""The guard that ends a KV stream while there is time to compute the rest."""

from __future__ import annotations

import asyncio

import pytest

from baton.decode.kv_stream.reader import SilentStreamError
from baton.decode.kv_stream.recovery import LOCAL_MARGIN, DeadlineGuard

LONG_SECONDS = 30.0
SOON_SECONDS = LONG_SECONDS / LOCAL_MARGIN - 0.01
"""The rest takes so long that its last moment is in 15 ms, of a deadline in LONG_SECONDS."""


def _deadline() -> float:
    return asyncio.get_running_loop().time() + LONG_SECONDS


def test_a_stream_ends_while_there_is_time_for_the_rest() -> None:
    """Half as much again as expected; not at the deadline, and not behind it."""

    async def main() -> None:
        async with asyncio.timeout(LONG_SECONDS / 3), DeadlineGuard(_deadline(), lambda: SOON_SECONDS):
            await asyncio.Event().wait()

    with pytest.raises(SilentStreamError, match="no more time"):
        asyncio.run(main())


def test_a_stream_that_has_got_further_by_then_goes_on() -> None:
    """The rest is asked for again at the moment itself: there is less of it."""

    async def main() -> int:
        looked, rests = asyncio.Event(), [SOON_SECONDS, 1.0]

        def rest() -> float:
            if len(rests) == 1:
                looked.set()
            return rests.pop(0)

        async with asyncio.timeout(LONG_SECONDS / 3), DeadlineGuard(_deadline(), rest):
            await looked.wait()
            await asyncio.sleep(0)
        return len(rests)

    assert asyncio.run(main()) == 0


def test_a_stream_that_stops_later_on_ends_at_a_later_moment() -> None:
    """At the moment that was reckoned last, not at the deadline: that it went on once is no reason to trust it."""

    async def main() -> None:
        rests = [SOON_SECONDS, SOON_SECONDS - 0.02]
        guard = DeadlineGuard(_deadline(), lambda: rests.pop(0) if rests else LONG_SECONDS)
        async with asyncio.timeout(LONG_SECONDS / 3), guard:
            await asyncio.Event().wait()

    with pytest.raises(SilentStreamError, match="no more time"):
        asyncio.run(main())


def test_a_timeout_of_the_stream_s_own_is_no_deadline() -> None:
    """What is surrounded may fail for another reason, and that is told."""

    async def main() -> None:
        async with DeadlineGuard(_deadline(), lambda: SOON_SECONDS / 2):
            raise TimeoutError("of a socket")

    with pytest.raises(TimeoutError, match="of a socket"):
        asyncio.run(main())


def test_a_stream_whose_last_moment_has_passed_is_the_only_hope() -> None:
    """It is not ended at once."""

    async def main() -> None:
        async with DeadlineGuard(_deadline(), lambda: LONG_SECONDS):
            for _ in range(5):
                await asyncio.sleep(0)

    asyncio.run(main())
