"""How busy this machine was while something was measured: on a busy host a mock's clock is not a device's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

BUSY_SHARE = 0.85
"""Above it the host itself delays passes and messages, and what was measured says so."""
_FREE = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")  # part of user and nice


class HostCpu:
    """Measures from its making on. Invariant: both readings are sums since the start of the machine."""

    def __init__(self, read: Callable[[], Any] = psutil.cpu_times) -> None:
        self._read = read
        self._began = read()

    def share(self) -> float:
        """Return busy / all CPU time of all cores since the beginning, 0 to 1; what a hypervisor steals is busy."""
        began, now = self._began._asdict(), self._read()._asdict()
        spent = {name: now[name] - began[name] for name in now if name not in _COUNTED_TWICE}
        total = sum(spent.values())
        free = sum(spent.get(name, 0.0) for name in _FREE)
        return max(0.0, min(1.0, 1 - free / total)) if total > 0 else 0.0
