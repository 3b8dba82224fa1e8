"""Power by the energy counters of Intel and AMD CPUs.

Source: the kernel's Documentation/power/powercap/powercap.rst. Most systems let only root read the counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from baton.internal.v1.node_pb2 import SystemSample

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
        """Add the power since the last reading.

        Raises:
            OSError: If this process may not read the counters.
        """
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
