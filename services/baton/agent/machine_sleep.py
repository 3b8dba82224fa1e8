"""A machine that sleeps: a clock that goes on meanwhile shows it; its worker rests before, and has time afterwards."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

import grpc

from baton.agent.health import HealthWatch
from baton.internal.v1 import worker_service_pb2
from baton.internal.v1.worker_service_pb2_grpc import WorkerServiceStub
from baton.rpc.channel import open_channel
from baton.rpc.status import error_from_rpc
from baton.wire.quantities import duration_from_seconds

INTERVAL_SECONDS = 1.0
LEAST_SLEEP_SECONDS = 10.0
"""A gap that is shorter may be a busy machine; connections outlast it."""


def unsleeping_clock() -> float:
    """Return seconds by a clock that goes on while the machine sleeps; `time.monotonic` stands still then."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # macOS: that of mach_continuous_time


class SleepWatch:
    """Tells of each sleep, and of each time that this process was stopped, once it is over.

    `on_wake` is told for how many seconds.
    """

    def __init__(
        self,
        on_wake: Callable[[float], Awaitable[None]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = unsleeping_clock,
    ) -> None:
        self._on_wake = on_wake
        self._sleep = sleep
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
        self._worker_address = worker_address
        self._watch = watch
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
