"""A machine that sleeps: a clock that goes on meanwhile shows it; its worker rests before, and has time afterwards."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn

import grpc

from baton.agent.health import HealthWatch
from baton.installation import install_line
from baton.internal.v1 import worker_service_pb2
from baton.internal.v1.worker_service_pb2_grpc import WorkerServiceStub
from baton.rpc.channel import open_channel
from baton.rpc.status import error_from_rpc
from baton.wire.quantities import duration_from_seconds

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus


INTERVAL_SECONDS = 1.0
LEAST_SLEEP_SECONDS = 10.0
"""A gap that is shorter may be a busy machine; connections outlast it."""


def unsleeping_clock() -> float:
    """Return seconds by a clock that goes on while the machine sleeps; `time.monotonic` stands still then."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # macOS: that of mach_continuous_time


class SleepWatch:
    """Tells `on_wake` how many seconds a sleep, or a stop of this process, has lasted, once it is over."""

    def __init__(
        self,
        on_wake: Callable[[float], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = unsleeping_clock,
    ) -> None:
        self._on_wake, self._sleep = on_wake, sleep
        self._clock = clock

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        while True:
            before = self._clock()
            await self._sleep(INTERVAL_SECONDS)
            gap = self._clock() - before - INTERVAL_SECONDS
            if gap >= LEAST_SLEEP_SECONDS:
                await self._on_wake(gap)


log = logging.getLogger(__name__)

_CALL_SECONDS = 2.0
LEASE_SECONDS = 30.0
"""Time awake after which a worker takes work again by itself: the machine may have stayed awake after all."""


class SleepHandler:
    """Pauses one worker before a sleep and resumes it afterwards; the health watch has one that does not answer."""

    def __init__(self, worker_address: str, watch: HealthWatch, wait_seconds: float) -> None:
        self._worker_address, self._watch = worker_address, watch
        self._wait_seconds = wait_seconds
        self.num_sleeps = 0
        """Since the agent began."""
        self.last_sleep_seconds = 0.0
        """Of the last sleep; 0 before the first."""

    async def before_sleep(self) -> None:
        """Have the worker take no new work and finish what runs, as far as there is time."""
        request = worker_service_pb2.PauseRequest(
            wait=duration_from_seconds(self._wait_seconds), lease=duration_from_seconds(LEASE_SECONDS)
        )
        try:
            async with open_channel(self._worker_address) as channel:
                stub = WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
                answer = await stub.Pause(request, timeout=self._wait_seconds + _CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.info("worker_not_paused cause=%r", error_from_rpc(error).message)
            return
        log.info("machine_sleeps requests_left=%d", answer.request_count)

    async def after_wake(self) -> None:
        """Have the worker take work again."""
        self._watch.forgive()
        try:
            async with open_channel(self._worker_address) as channel:
                stub = WorkerServiceStub(channel)  # type: ignore[no-untyped-call]
                await stub.Resume(worker_service_pb2.ResumeRequest(), timeout=_CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            log.info("worker_not_resumed cause=%r", error_from_rpc(error).message)

    async def after_gap(self, seconds: float) -> None:
        """Note a sleep that is over, announced or not."""
        self.num_sleeps += 1
        self.last_sleep_seconds = seconds
        log.info("machine_woke slept_seconds=%.0f", seconds)
        await self.after_wake()


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
        self._before_sleep, self._after_wake = before_sleep, after_wake
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
