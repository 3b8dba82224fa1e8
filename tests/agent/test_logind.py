"""systemd-logind says when the machine sleeps; its programs are played by scripts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from agent.programs import TIMEOUT_SECONDS, run
from baton.agent.logind import LogindEvents

_MONITOR = """#!/bin/sh
echo "Monitoring signals on object /org/freedesktop/login1 owned by org.freedesktop.login1"
echo "The name org.freedesktop.login1 is owned by :1.3"
while read -r line; do echo "/org/freedesktop/login1: org.freedesktop.login1.Manager.$line"; done < "{pipe}"
"""
_INHIBIT = """#!/bin/sh
trap 'echo given up >> "{log}"; exit 0' TERM
echo held >> "{log}"
while :; do sleep 0.05; done
"""


class Machine:
    """Plays logind."""

    def __init__(self, folder: Path) -> None:
        self.log, self.pipe = folder / "log", folder / "pipe"
        self.log.touch()
        os.mkfifo(self.pipe)
        for name, text in (("gdbus", _MONITOR), ("systemd-inhibit", _INHIBIT)):
            program = folder / name
            program.write_text(text.format(log=self.log, pipe=self.pipe))
            program.chmod(0o755)

    async def wait_for(self, *events: str) -> None:
        """Return when exactly these have been noted."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self.log.read_text().splitlines() != list(events):  # noqa: ASYNC110 - scripts write a file
                await asyncio.sleep(0.01)

    def note(self, event: str) -> None:
        """Note what a handler does."""
        with self.log.open("a") as file:
            file.write(f"{event}\n")


def test_the_sleep_waits_until_the_worker_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delay is held while awake, given up once the handler has done its work, and held again after the wake."""
    machine = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    async def main() -> None:
        async def before() -> None:
            machine.note("rests")

        async def after() -> None:
            machine.note("woken")

        task = asyncio.ensure_future(LogindEvents(before, after).run())
        signals = await asyncio.to_thread(machine.pipe.open, "w")  # once the monitor reads
        await machine.wait_for("held")
        signals.write("SessionNew ('3', '/org/freedesktop/login1/session/_33')\nPrepareForSleep (true,)\n")
        signals.flush()
        await machine.wait_for("held", "rests", "given up")
        signals.write("PrepareForSleep (false,)\n")
        signals.flush()
        await machine.wait_for("held", "rests", "given up", "woken", "held")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        signals.close()

    run(main)


def test_a_machine_without_the_programs_goes_on_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server never sleeps; the log says what is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    caplog.set_level("INFO")

    async def nothing() -> None:
        raise AssertionError

    async def main() -> None:
        await LogindEvents(nothing, nothing).run()

    run(main)
    assert "gdbus and systemd-inhibit not found" in caplog.text


def test_a_monitor_that_ends_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No system bus, for instance; the agent itself goes on."""
    Machine(tmp_path)
    (tmp_path / "gdbus").write_text("#!/bin/sh\nexit 3\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    caplog.set_level("INFO")

    async def nothing() -> None:
        raise AssertionError

    async def main() -> None:
        await LogindEvents(nothing, nothing).run()

    run(main)
    assert "gdbus: exit status 3" in caplog.text
