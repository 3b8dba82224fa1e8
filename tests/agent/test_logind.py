"""systemd-logind says when the machine sleeps; it is played on a bus of the test's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from dbus_fast import Message
from dbus_fast.aio import MessageBus

from agent.programs import TIMEOUT_SECONDS, run
from baton.agent.machine_sleep import LogindEvents

_MANAGER = "org.freedesktop.login1.Manager"
_CONFIG = """<busconfig>
  <type>system</type>
  <listen>unix:path={folder}/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/>
  </policy>
</busconfig>
"""


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """Run a system bus for this test alone."""
    if shutil.which("dbus-daemon") is None:
        pytest.skip("dbus-daemon is not installed")
    config = tmp_path / "bus.conf"
    config.write_text(_CONFIG.format(folder=tmp_path))
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/bus")
    command = ["dbus-daemon", f"--config-file={config}", "--nofork", "--print-address"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        yield process
        process.kill()


class Logind:
    """Plays logind: hands delays out, and says that the machine sleeps or wakes."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._bus = MessageBus(bus_address=os.environ["DBUS_SYSTEM_BUS_ADDRESS"], negotiate_unix_fd=True)
        self._held: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Logind:
        await self._bus.connect()
        self._bus.add_message_handler(self._take)
        await self._bus.request_name("org.freedesktop.login1")
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._held:
            task.cancel()
        await asyncio.gather(*self._held, return_exceptions=True)
        self._bus.disconnect()

    async def tell(self, *, is_about_to_sleep: bool) -> None:
        """Send the signal."""
        signal = Message.new_signal("/org/freedesktop/login1", _MANAGER, "PrepareForSleep", "b", [is_about_to_sleep])
        await self._bus.send(signal)

    async def wait_for(self, *events: str) -> None:
        """Return when exactly these have been noted."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while self.events != list(events):  # noqa: ASYNC110 - several tasks note events
                await asyncio.sleep(0.01)

    def _take(self, message: Message) -> bool:
        if message.member != "Inhibit":
            return False
        assert message.body == ["sleep", "Baton", "requests that run are finished first", "delay"]
        mine, theirs = os.pipe()
        self._held.add(asyncio.ensure_future(self._hold(mine)))
        self._bus.send(Message.new_method_return(message, "h", [0], unix_fds=[theirs])).add_done_callback(
            lambda _: os.close(theirs)
        )
        return True

    async def _hold(self, pipe: int) -> None:
        """Note a delay until whoever has the other end of the pipe closes it."""
        self.events.append("held")
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb"))
        await reader.read()
        self.events.append("given up")


async def _nothing() -> None:
    raise AssertionError


@pytest.mark.usefixtures("daemon")
def test_the_sleep_waits_until_the_worker_rests() -> None:
    """A delay is held while awake, given up once the handler has done its work, and held again after the wake."""

    async def main() -> None:
        async with Logind() as logind:

            async def before() -> None:
                logind.events.append("rests")

            async def after() -> None:
                logind.events.append("woken")

            task = asyncio.ensure_future(LogindEvents(before, after).run())
            await logind.wait_for("held")
            await logind.tell(is_about_to_sleep=True)
            await logind.wait_for("held", "rests", "given up")
            await logind.tell(is_about_to_sleep=False)
            await logind.wait_for("held", "rests", "given up", "held", "woken")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await logind.wait_for("held", "rests", "given up", "held", "woken", "given up")

    run(main)


def test_a_machine_without_a_bus_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server never sleeps; the log says what is missing."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    caplog.set_level("INFO")

    async def main() -> None:
        await LogindEvents(_nothing, _nothing).run()

    run(main)
    assert "sleep_not_announced" in caplog.text
    assert "No such file" in caplog.text


@pytest.mark.usefixtures("daemon")
def test_a_bus_without_logind_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """In a container, for instance; the agent itself goes on."""
    caplog.set_level("INFO")

    async def main() -> None:
        await LogindEvents(_nothing, _nothing).run()

    run(main)
    assert "sleep_not_announced" in caplog.text
    assert "Inhibit" in caplog.text


def test_a_bus_that_ends_is_told(daemon: subprocess.Popen[str], caplog: pytest.LogCaptureFixture) -> None:
    """The agent itself goes on."""
    caplog.set_level("INFO")

    async def main() -> None:
        async with Logind() as logind:
            task = asyncio.ensure_future(LogindEvents(_nothing, _nothing).run())
            await logind.wait_for("held")
            daemon.kill()
            await task

    run(main)
    assert "sleep_not_announced" in caplog.text
