"""Use and temperature of the CPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class _Counter:
    """One counter of energy."""

    file: Path
    """Holds microjoules."""
    range_microjoules: int
    """At which it begins anew."""


class RaplSensor:
    """Measures between two readings; the first one fills in nothing.

    The counter of the whole platform ("psys") counts where there is one; else those of all CPU packages together.
    """

    def __init__(self, folder: Path = _POWERCAP, clock: Callable[[], float] = time.monotonic) -> None:
        by_name = _counters(folder)
        platform = by_name.get("psys", [])
        self._counters = platform or [counter for counters in by_name.values() for counter in counters]
        self._is_cpu_alone = not platform
        self._clock = clock
        self._last_seconds = 0.0
        self._last: list[int] = []

    def read(self, sample: SystemSample) -> None:
        """Add the power since the last reading; raise OSError if this process may not read the counters."""
        if not self._counters:
            return
        now, seconds = [int(counter.file.read_text()) for counter in self._counters], self._clock()
        before, elapsed = self._last, seconds - self._last_seconds
        self._last, self._last_seconds = now, seconds
        if not before or elapsed <= 0:
            return
        microjoules = sum(
            (new - old) % (counter.range_microjoules + 1)
            for counter, old, new in zip(self._counters, before, now, strict=True)
        )
        watts = microjoules / 1e6 / elapsed
        sample.power_watts += watts
        if self._is_cpu_alone:
            sample.cpu_power_watts = watts


def _counters(folder: Path) -> dict[str, list[_Counter]]:
    """Return the counters that can be read, by the name of what they count."""
    by_name: dict[str, list[_Counter]] = {}
    # Parts of a package have a second number (intel-rapl:0:1) and are counted in it already.
    for domain in sorted(folder.glob("intel-rapl:*")):
        try:
            if domain.name.count(":") > 1:
                continue
            counter = _Counter(domain / "energy_uj", int((domain / "max_energy_range_uj").read_text()))
            counter.file.read_text()
            by_name.setdefault((domain / "name").read_text().strip(), []).append(counter)
        except (OSError, ValueError):
            continue
    return by_name
