"""Use and temperature of the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from baton.internal.v1.node_pb2 import SystemSample

_HYBRID_CLUSTERS = Path("/sys/devices")
"""Linux lists the cores of a hybrid CPU in cpu_core/cpus and cpu_atom/cpus below it."""
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class CoreTime(NamedTuple):
    """Seconds of one core since the machine started."""

    busy: float
    total: float


class CpuSensor:
    """Measures between two readings, so the first one shows the time since the sensor was made.

    On macOS nothing tells which cores are which, so nothing is reported there.
    """

    def __init__(
        self, read_times: Callable[[], Sequence[CoreTime]] | None = None, clusters: Path = _HYBRID_CLUSTERS
    ) -> None:
        self._read_times = read_times or _core_times
        self._efficiency_cores = _cores_of(clusters / "cpu_atom" / "cpus")
        self._is_known = sys.platform == "linux" or read_times is not None
        self._last = self._read_times()

    def read(self, sample: SystemSample) -> None:
        """Fill in the use of the cores of each kind."""
        if not self._is_known:
            return
        before, now = self._last, self._read_times()
        self._last = now
        if len(before) != len(now):  # a core came or went: the next reading compares again
            return
        cores = set(range(len(now)))
        performance = _usage(before, now, cores - self._efficiency_cores)
        efficiency = _usage(before, now, cores & self._efficiency_cores)
        if performance is not None:
            sample.performance_cpu_usage = performance
        if efficiency is not None:
            sample.efficiency_cpu_usage = efficiency


def read_cpu_temperature(sample: SystemSample) -> None:
    """Fill in the temperature of the hottest CPU sensor, where there is one."""
    read = getattr(psutil, "sensors_temperatures", None)  # psutil has it on Linux only
    readings = read() if read else {}
    degrees = [entry.current for name in _CPU_SENSORS for entry in readings.get(name, ())]
    if degrees:
        sample.temperature_celsius = max(degrees)


def _core_times() -> list[CoreTime]:
    times = []
    for core in psutil.cpu_times(percpu=True):
        fields = core._asdict()
        # The kernel counts the time of guests in `user` and `nice` already.
        total = sum(fields.values()) - fields.get("guest", 0.0) - fields.get("guest_nice", 0.0)
        times.append(CoreTime(total - fields["idle"] - fields.get("iowait", 0.0), total))
    return times


def _usage(before: Sequence[CoreTime], now: Sequence[CoreTime], cores: set[int]) -> float | None:
    """Return the share of the cores' time in use, 0 to 1; None without cores, or where no time has passed."""
    total = busy = 0.0
    for core in cores:
        total += now[core].total - before[core].total
        busy += now[core].busy - before[core].busy
    return min(1.0, max(0.0, busy / total)) if total > 0 else None


def _cores_of(path: Path) -> set[int]:
    """Return the cores of a kernel's list such as "0-3,8"; none where there is no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
