"""Apple's sensors, by samples in the format that macmon documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.apple import LASTING_SECONDS, AppleSensor, fill_from_macmon, open_apple_sensor
from node.polling import eventually

MACMON = (
    b'{"timestamp":"2026-11-20T20:38:15.427569+00:00","temp":{"cpu_temp_avg":43.5,"gpu_temp_avg":36.75},'
    b'"memory":{"ram_total":25769803776,"ram_usage":20985479168,"swap_total":4294967296,"swap_usage":2602434560},'
    b'"ecpu_usage":[1181,0.125],"pcpu_usage":[1974,0.25],"cpu_usage_pct":0.2,"gpu_usage":[461,0.5],"cpu_power":4.5,'
    b'"gpu_power":17.25,"ane_power":0.75,"all_power":22.5,"sys_power":38.5,"ram_power":0.5,"gpu_ram_power":0.125}\n'
)
"""One line of `macmon pipe`."""


def test_a_line_of_macmon_says_power_temperature_and_use() -> None:
    """The whole machine's power where there is a sensor for it, and that of the chip's parts."""
    sample = SystemSample()

    fill_from_macmon(MACMON, sample)

    assert sample == SystemSample(
        power_watts=38.5,
        cpu_power_watts=4.5,
        gpu_power_watts=17.25,
        ane_power_watts=0.75,
        temperature_celsius=36.75,
        gpu_usage=0.5,
        performance_cpu_usage=0.25,
        efficiency_cpu_usage=0.125,
    )


def test_the_chip_stands_in_for_a_machine_without_a_sensor_of_its_whole_power() -> None:
    """And the CPU's temperature for a GPU that is switched off."""
    sample = SystemSample()

    fill_from_macmon(MACMON.replace(b"38.5", b"0.0").replace(b"36.75", b"2.25"), sample)

    assert (sample.power_watts, sample.temperature_celsius) == (22.5, 43.5)


@pytest.mark.parametrize(
    "document", [b"", b"null", b"[]", b'{"temp": 3}', b'{"temp": {"gpu_temp_avg": 1}}', MACMON[:90]]
)
def test_what_macmon_does_not_write_is_refused(document: bytes) -> None:
    """Another program of that name, or another version."""
    with pytest.raises(ValueError):
        fill_from_macmon(document, SystemSample())


def _writing(folder: Path, output: bytes) -> Sequence[str]:
    """Return a program that writes the output and stays."""
    (folder / "output").write_bytes(output)
    return ("sh", "-c", f"cat {folder}/output; exec sleep 60")


def _reading(sensor: AppleSensor) -> SystemSample | None:
    sample = SystemSample()
    sensor.read(sample)
    return sample if sample.HasField("power_watts") else None


def _first_reading(sensor: AppleSensor) -> SystemSample:
    try:
        return eventually(lambda: _reading(sensor))
    finally:
        sensor.close()


def _failure_of(sensor: AppleSensor) -> Callable[[], str | None]:
    def look() -> str | None:
        try:
            sensor.read(SystemSample())
        except OSError as error:
            return str(error)
        return None

    return look


def test_macmon_is_read_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no rights."""
    program = tmp_path / "macmon"
    (tmp_path / "output").write_bytes(MACMON)
    program.write_text(f"#!/bin/sh\n/bin/cat {tmp_path}/output\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    sensor = open_apple_sensor("darwin")

    assert sensor is not None
    assert _first_reading(sensor).power_watts == 38.5


def test_the_last_whole_line_counts(tmp_path: Path) -> None:
    """One that has only begun does not."""
    lines = MACMON + MACMON.replace(b"38.5", b"40.5")

    assert _first_reading(AppleSensor(_writing(tmp_path, lines + MACMON[:90]))).power_watts == 40.5


def test_a_line_from_before_a_sleep_is_none(tmp_path: Path) -> None:
    """What was true then says nothing about now."""
    now = 0.0
    sensor = AppleSensor(_writing(tmp_path, MACMON), lambda: now)
    try:
        eventually(lambda: _reading(sensor))
        now = LASTING_SECONDS + 1

        assert _reading(sensor) is None
    finally:
        sensor.close()


def test_a_program_that_ended_is_an_error() -> None:
    """With its status, so that a log explains why a machine has no sensor."""
    assert eventually(_failure_of(AppleSensor(("sh", "-c", "exit 3")))).endswith("ended with status 3")


def test_a_program_that_does_not_exist_is_an_error() -> None:
    """As for any program."""
    with pytest.raises(OSError, match="no-such-program"):
        AppleSensor(("no-such-program",))


def test_a_mac_without_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    caplog.set_level("INFO")

    assert open_apple_sensor("darwin") is None
    assert "macmon is not installed (brew install macmon)" in caplog.text


def test_other_machines_have_none() -> None:
    """Whatever is installed there."""
    assert open_apple_sensor("linux") is None


def test_a_program_that_writes_something_else_is_ended() -> None:
    """The sensor is left out from then on; its program must not go on."""
    sensor = AppleSensor(("sh", "-c", "echo hello; exec sleep 60"))

    assert eventually(_failure_of(sensor)).startswith("cannot be read: ")
    with pytest.raises(OSError, match="ended with status -9"):
        sensor.read(SystemSample())
