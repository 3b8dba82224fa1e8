"""One run of a child process."""

from __future__ import annotations

import asyncio
import os

import pytest

from agent.programs import FOREVER, STUBBORN, Lines, program, run
from baton.agent.child import Child, ChildSpec, describe_exit


def test_lines_of_both_streams_and_the_exit_status_arrive() -> None:
    """Whatever the child wrote before it ended is handed on."""

    async def main() -> None:
        lines = Lines()
        code = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr); sys.exit(3)"
        child = Child(program("a", code), lines)

        status = await child.run()

        assert status == 3
        assert lines == [("a", "out"), ("a", "err")]
        assert list(child.last_lines) == ["out", "err"]
        assert child.process_id == 0

    run(main)


def test_a_child_is_in_a_group_of_its_own_and_in_this_session() -> None:
    """Ctrl-C is not meant for it; and Linux gives each session, not each process, its share of the CPUs."""

    async def main() -> None:
        lines = Lines()

        await Child(program("a", "import os; print(os.getpgid(0) == os.getpid(), os.getsid(0))"), lines).run()

        assert lines == [("a", f"True {os.getsid(0)}")]

    run(main)


def test_a_very_long_line_does_not_stop_the_pump() -> None:
    """A line over the limit is dropped; those after it still arrive."""

    async def main() -> None:
        lines = Lines()

        await Child(program("a", "print('x' * (3 << 20)); print('after')"), lines).run()

        assert lines[-1] == ("a", "after")

    run(main)


def test_a_child_whose_lines_nobody_takes_runs_to_its_end() -> None:
    """More than pipe and buffers hold, and a terminal that has gone."""

    def broken(_name: str, _line: str) -> None:
        raise BrokenPipeError

    async def main() -> None:
        status = await Child(program("a", "for _ in range(50_000): print('x' * 99)"), broken).run()

        assert status == 0

    run(main)


@pytest.mark.parametrize(("code", "grace_seconds"), [(FOREVER, 10.0), (STUBBORN, 0.1)])
def test_cancelling_stops_the_process(code: str, grace_seconds: float) -> None:
    """SIGTERM ends a well-behaved child, SIGKILL one that ignores it; nothing is left behind."""

    async def main() -> None:
        lines = Lines()
        child = Child(program("a", code), lines, grace_seconds=grace_seconds)
        task = asyncio.ensure_future(child.run())
        await lines.wait_for("a", "ready")
        process_id = child.process_id

        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

        assert process_id > 0
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)

    run(main)


def test_the_environment_of_the_spec_is_added() -> None:
    """Variables of the parent stay, those of the spec come on top."""

    async def main() -> None:
        lines = Lines()
        spec = program("a", "import os; print(os.environ['MORE'], 'PATH' in os.environ)")

        await Child(ChildSpec(spec.name, spec.arguments, {"MORE": "more"}), lines).run()

        assert lines == [("a", "more True")]

    run(main)


def test_a_program_that_is_missing_is_an_error() -> None:
    """Nothing is started, and the cause is raised."""

    async def main() -> None:
        with pytest.raises(FileNotFoundError):
            await Child(ChildSpec("a", ("/nonexistent/program",)), Lines()).run()

    run(main)


def test_exits_are_described_in_words() -> None:
    """A signal is named."""
    assert describe_exit(2) == "exit status 2"
    assert describe_exit(-9) == "signal SIGKILL"
    assert describe_exit(-250) == "signal 250"
