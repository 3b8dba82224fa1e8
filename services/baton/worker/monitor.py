"""What a node's work costs its machine: sensors read once a second beside the event loop, memory when asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from baton.engine.runners.base import Runner
from baton.v1.node_pb2 import SystemSample
from baton.worker.memory_sensor import peak_resident_bytes
from baton.worker.power_log import PowerLog
from baton.worker.sensors import SensorSet

READ_SECONDS = 1.0
"""Pause between two readings."""


class NodeMonitor:
    """Belongs to one node; `run` keeps it up to date.

    Args:
        runner: Tells the peak of a device with memory of its own.
        sensors: Read in a thread.
        clock: Seconds, monotonic.
    """

    def __init__(self, runner: Runner, sensors: SensorSet, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner = runner
        self._sensors = sensors
        self._clock = clock
        self._power = PowerLog()
        self.latest: SystemSample | None = None
        """Last reading; None before the first."""

    async def run(self) -> None:
        """Read the sensors for ever."""
        while True:
            self.take(await asyncio.to_thread(self._sensors.read))
            await asyncio.sleep(READ_SECONDS)

    def take(self, sample: SystemSample) -> None:
        """Keep a reading that was made now."""
        self.latest = sample
        if sample.HasField("power_watts"):
            self._power.add(self._clock(), sample.power_watts)

    def energy_joules(self, begin_seconds_ago: float, end_seconds_ago: float = 0.0) -> float | None:
        """Return the energy that the machine drew between two moments; None where no sensor covers them."""
        now = self._clock()
        return self._power.energy_joules(now - begin_seconds_ago, now - end_seconds_ago)

    def peak_memory_bytes(self) -> int:
        """Return the peak of the device's memory where it has its own, else of this process's, since its start."""
        return self._runner.peak_device_bytes() or peak_resident_bytes()
