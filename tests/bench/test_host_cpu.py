"""The share of the host's CPU."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from bench.host_cpu import HostCpu


class Times(NamedTuple):
    """Seconds since the start of a machine, as psutil has them."""

    user: float
    nice: float
    idle: float
    iowait: float
    steal: float
    guest: float


def test_what_is_not_idle_is_busy() -> None:
    """Stolen time is busy, and so is what should give way; a disk's is not; a guest's is in the user's already."""
    readings = iter([Times(10, 7, 100, 5, 0, 3), Times(12, 8, 103, 6, 1, 5)])
    cpu = HostCpu(lambda: next(readings))

    assert cpu.share() == pytest.approx(4 / 8)


def test_no_time_is_no_load() -> None:
    """Two readings at one moment say nothing."""
    cpu = HostCpu(lambda: Times(10, 7, 100, 5, 0, 3))

    assert cpu.share() == 0.0
