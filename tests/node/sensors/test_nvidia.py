"""The NVIDIA sensor, without a GPU: NVML is played."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from baton.internal.v1.node_pb2 import SystemSample
from baton.node.sensors.nvidia import open_nvidia_sensor


class FakeError(Exception):
    """NVML's error."""


class FakeNotSupportedError(FakeError):
    """What devices without memory of their own answer."""


class FakeNvml:
    """Two devices that differ in all they report."""

    NVMLError = FakeError
    NVMLError_NotSupported = FakeNotSupportedError
    free_bytes: int | None = 7 << 30
    NVML_TEMPERATURE_GPU = 0

    def nvmlInit(self) -> None:  # noqa: N802
        """Do nothing."""

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """Return the device."""
        if index > 1:
            raise FakeError("no such device")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        """Return the device."""
        return {"GPU-a": 0, "GPU-b": 1}[uuid]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        """Return per cent."""
        return SimpleNamespace(gpu=25 + handle)

    def nvmlDeviceGetTemperature(self, handle: int, _kind: int) -> int:  # noqa: N802
        """Return degrees."""
        return 50 + handle

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> Any:  # noqa: N802
        """Return bytes."""
        if self.free_bytes is None:
            raise FakeNotSupportedError("Not Supported")
        return SimpleNamespace(free=self.free_bytes)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        """Return milliwatts."""
        if handle == 1:
            raise FakeError("lost")
        return 300_000


@pytest.fixture(autouse=True)
def nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play NVML."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_use_temperature_and_power_are_read_and_power_is_added_to_the_cpus() -> None:
    """Per cent become a share, milliwatts watts."""
    sensor = open_nvidia_sensor("cuda:0")
    assert sensor is not None
    sample = SystemSample(power_watts=20)
    sensor.read(sample)

    assert sample.gpu_usage == pytest.approx(0.25)
    assert sample.temperature_celsius == 50
    assert sample.power_watts == pytest.approx(320)


@pytest.mark.parametrize("visible", ["1,0", "GPU-b,GPU-a"])
def test_cudas_numbers_are_those_of_the_visible_devices(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    """NVML counts all of them; it is asked for the one that CUDA means."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sensor = open_nvidia_sensor("cuda:1")
    assert sensor is not None
    sample = SystemSample()
    sensor.read(sample)

    assert sample.temperature_celsius == 50


@pytest.mark.parametrize("device", ["cpu", "", "cuda:7"])
def test_other_devices_have_no_sensor(device: str) -> None:
    """A node without an accelerator, or with one that NVML does not know."""
    assert open_nvidia_sensor(device) is None


def test_a_device_that_is_lost_is_an_error_of_its_reading() -> None:
    """The set of sensors leaves it out then."""
    sensor = open_nvidia_sensor("cuda:1")
    assert sensor is not None

    with pytest.raises(OSError, match="lost"):
        sensor.read(SystemSample())
