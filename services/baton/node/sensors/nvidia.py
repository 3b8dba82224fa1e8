"""Use, temperature and power of an NVIDIA accelerator, by NVML."""

from __future__ import annotations

import logging
import os
from typing import Any

from baton.internal.v1.node_pb2 import SystemSample

log = logging.getLogger(__name__)


class NvidiaSensor:
    """One accelerator. `open_nvidia_sensor` makes it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def read(self, sample: SystemSample) -> None:
        """Fill in use, temperature and free memory, and add the power; raise OSError if the driver does not answer."""
        nvml, handle = self._nvml, self._handle
        try:
            sample.gpu_usage = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            sample.temperature_celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            sample.gpu_power_watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
            sample.power_watts += sample.gpu_power_watts
            sample.available_gpu_memory_byte_count = self._available_bytes(sample)
        except nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error

    def _available_bytes(self, sample: SystemSample) -> int:
        """Return the accelerator's free memory; of the machine's where it has none of its own (GB10, Jetson)."""
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free)
        except self._nvml.NVMLError_NotSupported:
            return sample.available_memory_byte_count


def open_nvidia_sensor(device: str) -> NvidiaSensor | None:
    """Return the sensor of a torch device such as "cuda:0"; None for other devices, or without NVML."""
    if not device.startswith("cuda"):
        return None
    try:
        import pynvml
    except ImportError:
        log.info("no_gpu_metrics cause='nvidia-ml-py is not installed'")
        return None
    try:
        pynvml.nvmlInit()
        index = _physical(int(device.partition(":")[2] or 0), os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        by_name = isinstance(index, str)
        handle = pynvml.nvmlDeviceGetHandleByUUID(index) if by_name else pynvml.nvmlDeviceGetHandleByIndex(index)
    except (pynvml.NVMLError, ValueError) as error:
        log.info("no_gpu_metrics cause=%r", str(error))
        return None
    return NvidiaSensor(pynvml, handle)


def _physical(index: int, visible: str) -> int | str:
    """Return the number, or the UUID, of the device that CUDA calls `index` among those that it may see."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        return index
    return int(names[index]) if names[index].isdigit() else names[index]
