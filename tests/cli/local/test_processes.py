"""Processes that live and die together."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from agent.programs import FOREVER, Lines, program, run
from baton.cli.local.processes import ChildDiedError, Processes


def _is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_first_to_die_is_named_and_the_others_are_stopped(tmp_path: Path) -> None:
    """The error has its status and its last words."""
    sign = tmp_path / "die"

    async def main() -> None:
        lines = Lines()
        waiting = f"while not os.path.exists({str(sign)!r}): time.sleep(0.01)"
        dying = program("router", f"import os, time\nprint('about to fail')\n{waiting}\nraise SystemExit(5)")
        processes = Processes([program("gateway", FOREVER), dying], lines)
        task = asyncio.ensure_future(processes.run())
        await lines.wait_for("gateway", "ready")
        gateway = processes.process_id("gateway")
        sign.touch()

        with pytest.raises(ChildDiedError, match="router ended unexpectedly with exit status 5") as death:
            await task

        assert death.value.last_lines == ("about to fail",)
        assert gateway > 0
        assert not _is_alive(gateway)

    run(main)


def test_an_end_without_error_is_unexpected_too() -> None:
    """A service that leaves with status 0 is gone all the same."""

    async def main() -> None:
        with pytest.raises(ChildDiedError, match="a ended unexpectedly with exit status 0"):
            await Processes([program("a", "")], Lines()).run()

    run(main)


def test_a_killed_process_is_reported_by_its_signal() -> None:
    """The word is SIGKILL, not minus nine."""

    async def main() -> None:
        lines = Lines()
        processes = Processes([program("a", FOREVER)], lines)
        task = asyncio.ensure_future(processes.run())
        await lines.wait_for("a", "ready")

        os.kill(processes.process_id("a"), 9)

        with pytest.raises(ChildDiedError, match="signal SIGKILL"):
            await task

    run(main)


def test_a_part_that_dies_after_the_start_is_started_again() -> None:
    """It is told of, the others keep running, and cancelling still stops everything."""

    async def main() -> None:
        lines, deaths = Lines(), list[ChildDiedError]()
        specs = [program("a", FOREVER), program("b", FOREVER)]
        processes = Processes(specs, lines, on_death=deaths.append)
        task = asyncio.ensure_future(processes.run())
        await lines.wait_for("a", "ready")
        await lines.wait_for("b", "ready")
        before, other = processes.process_id("a"), processes.process_id("b")
        lines.clear()
        processes.mark_started()

        os.kill(before, 9)
        await lines.wait_for("a", "ready")
        assert [death.message for death in deaths] == ["a ended unexpectedly with signal SIGKILL"]

        after = processes.process_id("a")
        assert after not in (0, before)
        assert processes.process_id("b") == other
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not _is_alive(after)
        assert not _is_alive(other)

    run(main)


def test_one_may_be_stopped_before_the_others() -> None:
    """It is not started again, and they run until all are stopped."""

    async def main() -> None:
        lines, deaths = Lines(), list[ChildDiedError]()
        specs = [program("a", FOREVER), program("b", FOREVER)]
        processes = Processes(specs, lines, on_death=deaths.append)
        await processes.stop("a")  # nothing runs yet
        task = asyncio.ensure_future(processes.run())
        await lines.wait_for("a", "ready")
        await lines.wait_for("b", "ready")
        processes.mark_started()
        first, other = processes.process_id("a"), processes.process_id("b")

        await processes.stop("a")

        assert not _is_alive(first)
        assert _is_alive(other)
        assert deaths == []
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not _is_alive(other)

    run(main)


def test_a_part_that_cannot_start_with_its_settings_is_not_started_again() -> None:
    """It would end alike: all end, and the error has its words."""

    async def main() -> None:
        wrong = program("wrong", "print('error: no such folder'); raise SystemExit(2)")
        processes = Processes([program("fine", FOREVER), wrong], Lines())
        processes.mark_started()

        with pytest.raises(ChildDiedError, match="wrong ended unexpectedly with exit status 2") as death:
            await processes.run()

        assert death.value.last_lines == ("error: no such folder",)

    run(main)


def test_kill_does_not_wait_for_anybody() -> None:
    """A second Ctrl-C ends children within their grace."""

    async def main() -> None:
        lines = Lines()
        processes = Processes([program("a", FOREVER)], lines)
        task = asyncio.ensure_future(processes.run())
        await lines.wait_for("a", "ready")

        processes.kill()

        with pytest.raises(ChildDiedError, match="SIGKILL"):
            await task

    run(main)
