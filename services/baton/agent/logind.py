"""Is told by systemd-logind before a Linux machine sleeps, and holds the sleep up for as long as that takes.

Source: org.freedesktop.login1(5), PrepareForSleep and inhibitors. Where there is no system bus, or nobody on it is
logind, the machine is not sent to sleep, or SleepWatch notices it afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from baton.installation import install_line

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

log = logging.getLogger(__name__)

_BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus")
"""Destination, path and interface of the bus itself."""
_LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
"""Those of logind."""
_SIGNAL = "PrepareForSleep"

Handler = Callable[[], Awaitable[None]]


class LogindEvents:
    """Runs handlers before and after each sleep.

    Invariant: while the machine is awake and `run` runs, a delay is held, and given up once `before_sleep` has
    returned; systemd waits no longer than its InhibitDelayMaxSec (5 s).
    """

    def __init__(self, before_sleep: Handler, after_wake: Handler) -> None:
        self._before_sleep = before_sleep
        self._after_wake = after_wake
        self._signals: asyncio.Queue[bool] = asyncio.Queue()
        self._delay: int | None = None
        """The file whose closing gives the delay up; None: no delay is held."""

    async def run(self) -> None:
        """Follow the signals until cancelled, or until the bus is gone; what is missing for that is logged."""
        try:
            from dbus_fast import BusType
            from dbus_fast.aio import MessageBus
        except ImportError:
            log.info("sleep_not_announced cause=%r", f"dbus-fast is not installed: {install_line('agent')}")
            return
        bus = MessageBus(bus_type=BusType.SYSTEM, negotiate_unix_fd=True)
        try:
            await bus.connect()
            await self._follow(bus)
        except (OSError, EOFError, _CallError) as error:
            log.info("sleep_not_announced cause=%r", str(error) or type(error).__name__)
        finally:
            self._end_delay()
            bus.disconnect()

    async def _follow(self, bus: MessageBus) -> None:
        bus.add_message_handler(self._take)
        await _call(bus, _BUS, "AddMatch", f"type='signal',interface='{_LOGIND[2]}',member='{_SIGNAL}'")
        handling = asyncio.ensure_future(self._handle(bus))
        ended = asyncio.ensure_future(bus.wait_for_disconnect())  # type: ignore[no-untyped-call]
        try:
            await asyncio.wait({handling, ended}, return_when=asyncio.FIRST_COMPLETED)
            if handling.done():
                handling.result()
            raise _CallError("the system bus has ended the connection")
        finally:
            for task in (handling, ended):
                task.cancel()
            await asyncio.gather(handling, ended, return_exceptions=True)

    def _take(self, message: Message) -> None:
        if (message.interface, message.member) == (_LOGIND[2], _SIGNAL):
            self._signals.put_nowait(bool(message.body[0]))

    async def _handle(self, bus: MessageBus) -> None:
        await self._begin_delay(bus)
        while True:
            if await self._signals.get():
                await self._before_sleep()
                self._end_delay()
            else:
                try:
                    await self._begin_delay(bus)
                finally:
                    await self._after_wake()

    async def _begin_delay(self, bus: MessageBus) -> None:
        if self._delay is None:
            why = ("sleep", "Baton", "requests that run are finished first", "delay")
            reply = await _call(bus, _LOGIND, "Inhibit", *why)
            self._delay = reply.unix_fds[0]

    def _end_delay(self) -> None:
        if self._delay is not None:
            os.close(self._delay)
            self._delay = None


class _CallError(Exception):
    """The bus, or logind, has refused a call or is gone."""


async def _call(bus: MessageBus, target: tuple[str, str, str], member: str, *arguments: str) -> Message:
    """Return the answer to a method of an object on the bus that takes texts; _CallError if it is an error."""
    from dbus_fast import Message, MessageType

    signature = "s" * len(arguments)
    reply = await bus.call(Message(*target, member, signature=signature, body=list(arguments)))
    if reply is None or reply.message_type is not MessageType.METHOD_RETURN:
        raise _CallError(f"{member}: {reply.body[0] if reply is not None and reply.body else 'no answer'}")
    return reply
