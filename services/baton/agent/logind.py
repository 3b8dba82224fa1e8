"""Is told by systemd-logind before a Linux machine sleeps, and holds the sleep up for as long as that takes.

Sources: org.freedesktop.login1(5), PrepareForSleep and inhibitors; `gdbus monitor` prints one signal a line. Machines
with a desktop have both programs; on others the machine is not sent to sleep, or SleepWatch notices it afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable

from baton.agent.child import Child, ChildSpec, describe_exit

log = logging.getLogger(__name__)

_INHIBIT = (
    *("systemd-inhibit", "--what=sleep", "--mode=delay", "--who=Baton"),
    *("--why=requests that run are finished first", "sleep", "infinity"),
)
_MONITOR = (
    *("gdbus", "monitor", "--system", "--dest", "org.freedesktop.login1"),
    *("--object-path", "/org/freedesktop/login1"),
)
_SIGNAL = "org.freedesktop.login1.Manager.PrepareForSleep"

Handler = Callable[[], Awaitable[None]]


class LogindEvents:
    """Runs handlers before and after each sleep.

    Invariant: while the machine is awake and `run` runs, a delay is held, and given up once `before_sleep` has
    returned; systemd waits no longer than its InhibitDelayMaxSec (5 s).

    Args:
        before_sleep: Called when the machine is about to sleep.
        after_wake: Called when it is awake again.
    """

    def __init__(self, before_sleep: Handler, after_wake: Handler) -> None:
        self._before_sleep = before_sleep
        self._after_wake = after_wake
        self._signals: asyncio.Queue[bool] = asyncio.Queue()
        self._delay: asyncio.Task[int] | None = None

    async def run(self) -> None:
        """Follow the signals until cancelled, or until the monitor ends."""
        if missing := [name for name in ("gdbus", "systemd-inhibit") if shutil.which(name) is None]:
            log.info("sleep_not_announced cause='%s not found'", " and ".join(missing))
            return
        monitor = asyncio.ensure_future(Child(ChildSpec("gdbus", _MONITOR), self._take).run())
        handling = asyncio.ensure_future(self._handle())
        try:
            await asyncio.wait({monitor, handling}, return_when=asyncio.FIRST_COMPLETED)
            if handling.done():
                handling.result()
            log.info("sleep_not_announced cause='gdbus: %s'", describe_exit(monitor.result()))
        finally:
            tasks = [task for task in (monitor, handling, self._delay) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _take(self, _name: str, line: str) -> None:
        if _SIGNAL in line:
            self._signals.put_nowait("true" in line.rpartition(_SIGNAL)[2])

    async def _handle(self) -> None:
        self._begin_delay()
        while True:
            if await self._signals.get():
                await self._before_sleep()
                await self._end_delay()
            else:
                self._begin_delay()
                await self._after_wake()

    def _begin_delay(self) -> None:
        if self._delay is None or self._delay.done():
            child = Child(ChildSpec("systemd-inhibit", _INHIBIT), lambda _name, _line: None)
            self._delay = asyncio.ensure_future(child.run())

    async def _end_delay(self) -> None:
        if self._delay is not None:
            self._delay.cancel()
            await asyncio.gather(self._delay, return_exceptions=True)
            self._delay = None
