"""Moves what the host has planned to the device without waiting for it.

What a device's memory has left for blocks once its model is loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch

from baton.config.container_limits import machine_memory, usable_memory
from baton.engine.kv_cache.pool_size import DeviceMemory


def upload(values: Sequence[object] | torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers as a tensor on a device.

    For CUDA they leave from pinned memory, which torch keeps until the copy is done: the host goes on at once.

    Args:
        values: Numbers, rows of numbers, or a tensor on the host.
        device: Where to.
        dtype: Of the result.
    """
    host = values.to(dtype) if isinstance(values, torch.Tensor) else torch.tensor(values, dtype=dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def device_memory(device: torch.device, *, num_ranks: int = 1) -> DeviceMemory:
    """Return the memory of a device.

    Args:
        device: With the model on it.
        num_ranks: Ranks of the model; on a CPU they share its memory.
    """
    if device.type != "cuda":
        memory = usable_memory()
        return DeviceMemory("main memory", memory.total_bytes, 0, memory.free_bytes // num_ranks, is_main=True)
    gc.collect()  # transformers' modules refer to each other, and loading has left copies of weights
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    if torch.cuda.get_device_properties(device).is_integrated:  # the driver counts files that were read as taken
        free_bytes = max(free_bytes, machine_memory().free_bytes)
    own_bytes = torch.cuda.memory_reserved(device)
    return DeviceMemory(str(device), total_bytes, own_bytes, free_bytes, is_main=False)
