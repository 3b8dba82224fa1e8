"""What a node's work costs its machine."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from baton.engine.runners.base import Runner
from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.machine import MachineSensors
from baton.node.sensors.monitor import NodeMonitor


class Device:
    """The part of a runner that tells memory."""

    def __init__(self, peak_bytes: int) -> None:
        self._peak_bytes = peak_bytes

    def peak_device_bytes(self) -> int:
        """Return the peak."""
        return self._peak_bytes


def monitor_of(peak_bytes: int = 0, *, seconds: float = 0.0) -> tuple[NodeMonitor, list[float]]:
    """Return a monitor and its clock, a list of one number."""
    clock = [seconds]
    return NodeMonitor(cast(Runner, Device(peak_bytes)), MachineSensors([]), lambda: clock[0]), clock


def test_the_peak_is_the_devices_where_it_has_memory_of_its_own() -> None:
    """Else the process's, which is never 0."""
    own, shared = monitor_of(123)[0], monitor_of()[0]

    assert own.peak_memory_bytes() == 123
    assert shared.peak_memory_bytes() > 1 << 20


def test_energy_is_that_of_the_readings() -> None:
    """Two readings of 10 W, a second apart, and a window of half a second between them."""
    monitor, clock = monitor_of(seconds=5)
    monitor.take(SystemSample(power_watts=10))
    clock[0] = 6
    monitor.take(SystemSample(power_watts=10))

    assert monitor.energy_joules(0.75, 0.25) == pytest.approx(5)


def test_without_a_sensor_of_power_energy_is_unknown() -> None:
    """A reading of anything else does not count as 0 watts."""
    monitor, _ = monitor_of()
    monitor.take(SystemSample(gpu_usage=0.5))

    assert monitor.energy_joules(1) is None
    assert monitor.latest == SystemSample(gpu_usage=0.5)


def test_readings_come_by_themselves() -> None:
    """The first at once."""

    async def run() -> SystemSample:
        read = asyncio.Event()
        loop = asyncio.get_running_loop()

        def sensor(sample: SystemSample) -> None:
            sample.gpu_usage = 0.5

        monitor = NodeMonitor(cast(Runner, Device(0)), MachineSensors([sensor]))
        take = monitor.take

        def note(sample: SystemSample) -> None:
            take(sample)
            loop.call_soon(read.set)

        monitor.take = note  # type: ignore[method-assign]
        task = asyncio.create_task(monitor.run())
        await asyncio.wait_for(read.wait(), 20)
        task.cancel()
        assert monitor.latest is not None
        return monitor.latest

    assert asyncio.run(run()).gpu_usage == 0.5
