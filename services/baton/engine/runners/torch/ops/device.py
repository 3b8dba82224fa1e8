"""Memory of a device: ranges of it, and what it has left."""

from __future__ import annotations

import gc
from typing import NamedTuple

import torch

from baton.config.container_limits import machine_memory, usable_memory
from baton.engine.kv_cache.pool_size import DeviceMemory


class MemoryRange(NamedTuple):
    """Some bytes of this process."""

    address: int
    num_bytes: int


def memory_of(tensor: torch.Tensor) -> MemoryRange:
    """Return where a dense tensor of the CPU is."""
    return MemoryRange(tensor.data_ptr(), tensor.nbytes)


def device_memory(device: torch.device, *, num_ranks: int = 1) -> DeviceMemory:
    """Return what a loaded model leaves of a device's memory for blocks. `num_ranks` share the memory of a CPU."""
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
