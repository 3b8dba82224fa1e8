"""Apple's sensors, by samples in the formats that macmon and powermetrics document."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.apple import (
    AppleSensor,
    DocumentStream,
    fill_from_macmon,
    fill_from_powermetrics,
    open_apple_sensor,
)
from node.polling import eventually

MACMON = (
    b'{"timestamp":"2026-11-20T20:38:15.427569+00:00","temp":{"cpu_temp_avg":43.5,"gpu_temp_avg":36.75},'
    b'"memory":{"ram_total":25769803776,"ram_usage":20985479168,"swap_total":4294967296,"swap_usage":2602434560},'
    b'"ecpu_usage":[1181,0.125],"pcpu_usage":[1974,0.25],"cpu_usage_pct":0.2,"gpu_usage":[461,0.5],"cpu_power":4.5,'
    b'"gpu_power":17.25,"ane_power":0.75,"all_power":22.5,"sys_power":38.5,"ram_power":0.5,"gpu_ram_power":0.125}\n'
)
"""One line of `macmon pipe`."""
POWERMETRICS = b"""<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
<key>is_delta</key><true/>
<key>elapsed_ns</key><integer>1002034542</integer>
<key>hw_model</key><string>Mac15,14</string>
<key>timestamp</key><date>2026-11-20T20:38:15Z</date>
<key>processor</key><dict>
  <key>clusters</key><array>
    <dict><key>name</key><string>E-Cluster</string><key>freq_hz</key><real>972e6</real><key>cpus</key><array>
      <dict><key>cpu</key><integer>0</integer><key>idle_ratio</key><real>0.5</real><key>down_ratio</key><real>0</real></dict>
      <dict><key>cpu</key><integer>1</integer><key>idle_ratio</key><real>0.25</real><key>down_ratio</key><real>0.25</real></dict>
    </array></dict>
    <dict><key>name</key><string>P0-Cluster</string><key>freq_hz</key><real>2064e6</real><key>cpus</key><array>
      <dict><key>cpu</key><integer>2</integer><key>idle_ratio</key><real>0.25</real></dict>
    </array></dict>
    <dict><key>name</key><string>P1-Cluster</string><key>freq_hz</key><real>2064e6</real><key>cpus</key><array>
      <dict><key>cpu</key><integer>3</integer><key>idle_ratio</key><real>0.75</real></dict>
    </array></dict>
  </array>
  <key>cpu_energy</key><integer>4510</integer><key>cpu_power</key><real>4500</real>
  <key>gpu_energy</key><integer>17300</integer><key>gpu_power</key><real>17250</real>
  <key>ane_energy</key><integer>752</integer><key>ane_power</key><real>750</real>
  <key>combined_power</key><real>22500</real>
</dict>
<key>thermal_pressure</key><string>Nominal</string>
<key>gpu</key><dict><key>freq_hz</key><real>461</real><key>idle_ratio</key><real>0.375</real></dict>
</dict>
</plist>
"""
"""One document of `powermetrics --samplers cpu_power,gpu_power --format plist`; NUL lies between two."""


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


def test_a_document_of_powermetrics_says_power_and_use() -> None:
    """In watts; a core that is switched off is not in use; Apple silicon has no temperatures there."""
    sample = SystemSample()

    fill_from_powermetrics(b"\0" + POWERMETRICS, sample)

    assert sample == SystemSample(
        power_watts=22.5,
        cpu_power_watts=4.5,
        gpu_power_watts=17.25,
        ane_power_watts=0.75,
        gpu_usage=0.625,
        performance_cpu_usage=0.5,
        efficiency_cpu_usage=0.5,
    )


@pytest.mark.parametrize(
    "document", [b"", b"null", b"[]", b'{"temp": 3}', b'{"temp": {"gpu_temp_avg": 1}}', MACMON[:90]]
)
def test_what_macmon_does_not_write_is_refused(document: bytes) -> None:
    """Another program of that name, or another version."""
    with pytest.raises(ValueError):
        fill_from_macmon(document, SystemSample())


@pytest.mark.parametrize(
    "document",
    [b"", b"junk", POWERMETRICS[:-300] + b"</plist>", POWERMETRICS.replace(b"combined_power", b"other_power")],
)
def test_what_powermetrics_does_not_write_is_refused(document: bytes) -> None:
    """Cut documents too."""
    with pytest.raises(ValueError):
        fill_from_powermetrics(document, SystemSample())


def _program(folder: Path, name: str, output: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a program of that name, the only one to be found, that writes the output and stays."""
    (folder / "output").write_bytes(output)
    program = folder / name
    program.write_text(f"#!/bin/sh\n/bin/cat {folder}/output\nexec /bin/sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def _first_reading(sensor: AppleSensor) -> SystemSample:
    def look() -> SystemSample | None:
        sample = SystemSample()
        sensor.read(sample)
        return sample if sample.HasField("power_watts") else None

    try:
        return eventually(look)
    finally:
        sensor.close()


def test_macmon_is_read_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs no rights."""
    _program(tmp_path, "macmon", MACMON, monkeypatch)

    sensor = open_apple_sensor("darwin", is_root=False)

    assert sensor is not None
    assert _first_reading(sensor).power_watts == 38.5


def test_powermetrics_stands_in_for_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where macmon is not installed."""
    _program(tmp_path, "powermetrics", POWERMETRICS + b"\0" + POWERMETRICS[:100], monkeypatch)

    sensor = open_apple_sensor("darwin", is_root=True)

    assert sensor is not None
    assert _first_reading(sensor).power_watts == 22.5


def test_a_mac_without_either_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With what to install; powermetrics alone does not help a user."""
    _program(tmp_path, "powermetrics", POWERMETRICS, monkeypatch)
    caplog.set_level("INFO")

    assert open_apple_sensor("darwin", is_root=False) is None
    assert "macmon is not installed (brew install macmon)" in caplog.text


def test_other_machines_have_none() -> None:
    """Whatever is installed there."""
    assert open_apple_sensor("linux") is None


def test_a_program_that_writes_something_else_is_ended() -> None:
    """The sensor is left out from then on; its program must not go on."""
    sensor = AppleSensor(DocumentStream(("sh", "-c", "echo hello; exec sleep 60"), b"\n"), fill_from_macmon)

    def failure() -> str | None:
        try:
            sensor.read(SystemSample())
        except OSError as error:
            return str(error)
        return None

    assert eventually(failure).startswith("cannot be read: ")
    with pytest.raises(OSError, match="ended with status -9"):
        sensor.read(SystemSample())
