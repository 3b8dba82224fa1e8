"""Power of the CPU packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.cpu import RaplSensor


class Machine:
    """A folder as the kernel has it, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = 0.0

    def set(self, domain: str, name: str, microjoules: int) -> None:
        """Set a counter."""
        path = self.folder / domain
        path.mkdir(exist_ok=True)
        (path / "name").write_text(f"{name}\n")
        (path / "energy_uj").write_text(f"{microjoules}\n")
        (path / "max_energy_range_uj").write_text("9999999\n")

    def sensor(self) -> RaplSensor:
        """Return a sensor of it."""
        return RaplSensor(self.folder, lambda: self.seconds)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine without counters."""
    return Machine(tmp_path)


def reading(sensor: RaplSensor) -> SystemSample:
    """Return one reading."""
    sample = SystemSample()
    sensor.read(sample)
    return sample


def test_power_is_the_energy_of_all_packages_by_the_time_between_readings(machine: Machine) -> None:
    """A part of a package is counted in it already; one reading alone says nothing."""
    for domain, name in (("intel-rapl:0", "package-0"), ("intel-rapl:1", "package-1"), ("intel-rapl:0:0", "core")):
        machine.set(domain, name, 1_000_000)
    sensor = machine.sensor()
    first = reading(sensor)
    machine.set("intel-rapl:0", "package-0", 5_000_000)
    machine.set("intel-rapl:1", "package-1", 3_000_000)
    machine.set("intel-rapl:0:0", "core", 4_000_000)
    machine.seconds = 2.0

    assert not first.HasField("power_watts")
    sample = reading(sensor)
    assert (sample.power_watts, sample.cpu_power_watts) == (pytest.approx(3.0), pytest.approx(3.0))


def test_a_counter_that_began_anew_is_not_negative_power(machine: Machine) -> None:
    """It runs to its range and starts at 0."""
    machine.set("intel-rapl:0", "package-0", 9_999_999)
    sensor = machine.sensor()
    reading(sensor)
    machine.set("intel-rapl:0", "package-0", 999_999)
    machine.seconds = 1.0

    assert reading(sensor).power_watts == pytest.approx(1.0)


def test_the_whole_platform_counts_alone(machine: Machine) -> None:
    """It has the packages in it."""
    machine.set("intel-rapl:0", "package-0", 0)
    machine.set("intel-rapl:1", "psys", 0)
    sensor = machine.sensor()
    reading(sensor)
    machine.set("intel-rapl:0", "package-0", 1_000_000)
    machine.set("intel-rapl:1", "psys", 4_000_000)
    machine.seconds = 1.0

    sample = reading(sensor)
    assert sample.power_watts == pytest.approx(4.0)
    assert not sample.HasField("cpu_power_watts")


def test_a_machine_without_counters_has_no_power(machine: Machine) -> None:
    """Unset, not 0."""
    sensor = machine.sensor()
    reading(sensor)
    machine.seconds = 1.0

    assert not reading(sensor).HasField("power_watts")
