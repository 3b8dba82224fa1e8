"""What a node's work costs its machine: sensors read once a second beside the event loop, power kept for energy."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from baton.engine.runners.base import Runner
from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.machine import MachineSensors

READ_SECONDS = 1.0
"""Pause between two readings."""
MAX_SAMPLES = 900
"""A quarter of an hour at one sample per second."""
MAX_GAP_SECONDS = 3.0
"""Samples further apart than this, or a window's end further from the next sample, leave the energy unknown."""


class NodeMonitor:
    """The latest sensor reading of a node's machine, and the power of the last minutes; `run` keeps both up to date."""

    def __init__(self, runner: Runner, sensors: MachineSensors, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner, self._sensors = runner, sensors
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
        return self._runner.peak_device_bytes() or _peak_resident_bytes()


class PowerSample(NamedTuple):
    """Power at one time."""

    seconds: float
    """By a monotonic clock."""
    watts: float


class PowerLog:
    """Keeps the last samples, in the order of their times."""

    def __init__(self) -> None:
        self._samples: deque[PowerSample] = deque(maxlen=MAX_SAMPLES)

    def add(self, seconds: float, watts: float) -> None:
        """Keep a sample, later than all before."""
        self._samples.append(PowerSample(seconds, watts))

    def energy_joules(self, begin_seconds: float, end_seconds: float) -> float | None:
        """Return the energy of a window by the trapezoid rule; None where samples do not cover it. O(samples).

        Power at the window's ends is interpolated; past the first and the last sample it is taken as theirs.
        """
        if not self._samples:
            return None
        times, watts = np.array(self._samples).T
        if not _covers(times, begin_seconds, end_seconds):
            return None
        inner = times[(begin_seconds < times) & (times < end_seconds)]
        points = np.concatenate(([begin_seconds], inner, [end_seconds]))
        power = np.interp(points, times, watts)
        return float(np.diff(points) @ (power[1:] + power[:-1]) / 2)


def _covers(times: npt.NDArray[np.float64], begin_seconds: float, end_seconds: float) -> bool:
    """Return whether no moment of a window is far from the samples around it."""
    if begin_seconds < times[0] - MAX_GAP_SECONDS or end_seconds > times[-1] + MAX_GAP_SECONDS:
        return False
    is_far = np.diff(times) > MAX_GAP_SECONDS
    return not np.any(is_far & (times[1:] > begin_seconds) & (times[:-1] < end_seconds))


def _peak_resident_bytes() -> int:
    """Return the most memory that this process has had resident since its start."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kibibytes elsewhere
