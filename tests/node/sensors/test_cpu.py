"""Use of the cores, by kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.cpu import CoreTime, CpuSensor


def reading(sensor: CpuSensor) -> SystemSample:
    """Return one reading."""
    sample = SystemSample()
    sensor.read(sample)
    return sample


def sensor_of(clusters: Path, *times: list[CoreTime]) -> CpuSensor:
    """Return a sensor to which the cores' times come one after the other."""
    iterator: Iterator[list[CoreTime]] = iter(times)
    return CpuSensor(lambda: next(iterator), clusters)


def test_use_is_the_busy_share_since_the_last_reading(tmp_path: Path) -> None:
    """Two cores, 3 of 8 seconds busy; a machine with one kind of cores has no efficiency cores."""
    sensor = sensor_of(tmp_path, [CoreTime(5, 10), CoreTime(5, 10)], [CoreTime(6, 14), CoreTime(7, 14)])

    sample = reading(sensor)

    assert sample.performance_cpu_usage == pytest.approx(3 / 8)
    assert not sample.HasField("efficiency_cpu_usage")


def test_the_kinds_of_a_hybrid_cpu_are_told_apart(tmp_path: Path) -> None:
    """The kernel lists the efficiency cores."""
    (tmp_path / "cpu_atom").mkdir()
    (tmp_path / "cpu_atom" / "cpus").write_text("1-2,4\n")
    busy = [CoreTime(busy, 10) for busy in (10, 0, 5, 10, 4)]
    sensor = sensor_of(tmp_path, [CoreTime(0, 0)] * 5, busy)

    sample = reading(sensor)

    assert sample.performance_cpu_usage == pytest.approx(1.0)
    assert sample.efficiency_cpu_usage == pytest.approx(0.3)


def test_no_time_between_two_readings_is_no_use(tmp_path: Path) -> None:
    """Unset, not 0."""
    sensor = sensor_of(tmp_path, [CoreTime(1, 2)], [CoreTime(1, 2)])

    assert not reading(sensor).HasField("performance_cpu_usage")


def test_a_core_that_came_makes_one_reading_unknown(tmp_path: Path) -> None:
    """The next one compares like with like again."""
    sensor = sensor_of(tmp_path, [CoreTime(0, 0)], [CoreTime(1, 1)] * 2, [CoreTime(2, 3)] * 2)

    assert not reading(sensor).HasField("performance_cpu_usage")
    assert reading(sensor).performance_cpu_usage == pytest.approx(0.5)
