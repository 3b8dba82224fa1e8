"""A child that is kept alive."""

from __future__ import annotations

import asyncio

import pytest

from agent.programs import FOREVER, Lines, program, run
from baton.agent.supervisor import Backoff, SupervisedState, Supervisor


class FakeSleep:
    """Notes the pauses and ends the supervision after some of them."""

    def __init__(self, num_pauses: int) -> None:
        self.pauses: list[float] = []
        self._num_pauses = num_pauses

    async def __call__(self, seconds: float) -> None:
        """Note a pause."""
        self.pauses.append(seconds)
        if len(self.pauses) >= self._num_pauses:
            raise asyncio.CancelledError


def test_pauses_double_up_to_the_longest() -> None:
    """A child that cannot start does not burn the machine."""
    backoff = Backoff(first_seconds=0.5, longest_seconds=3.0)

    assert [backoff.pause_seconds(n) for n in (1, 2, 3, 4, 1000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_child_that_dies_is_started_again_after_growing_pauses() -> None:
    """Every run is counted and the last exit status is kept."""

    async def main() -> None:
        sleep = FakeSleep(3)
        supervisor = Supervisor(program("a", "import sys; sys.exit(4)"), Lines(), sleep=sleep)

        with pytest.raises(asyncio.CancelledError):
            await supervisor.run()

        assert sleep.pauses == [0.5, 1.0, 2.0]
        assert supervisor.num_restarts == 3
        assert supervisor.last_exit_status == 4
        assert supervisor.state is SupervisedState.STOPPED

    run(main)


def test_a_long_run_clears_the_failures() -> None:
    """A worker that dies once a day is started again at once each time."""

    async def main() -> None:
        sleep, times = FakeSleep(2), iter((0.0, 1.0, 100.0, 1000.0))
        supervisor = Supervisor(program("a", ""), Lines(), sleep=sleep, clock=lambda: next(times))

        with pytest.raises(asyncio.CancelledError):
            await supervisor.run()

        assert sleep.pauses == [0.5, 0.5]

    run(main)


def test_a_stuck_child_is_replaced() -> None:
    """`restart_child` ends the process; the state follows."""

    async def main() -> None:
        lines, sleep = Lines(), FakeSleep(1)
        supervisor = Supervisor(program("a", FOREVER), lines, sleep=sleep)
        task = asyncio.ensure_future(supervisor.run())
        await lines.wait_for("a", "ready")
        supervisor.mark_serving()
        assert supervisor.state is SupervisedState.SERVING

        supervisor.restart_child("test")
        with pytest.raises(asyncio.CancelledError):
            await task

        assert supervisor.last_exit_status == -9
        assert supervisor.process_id == 0

    run(main)
