"""Memory of a device: what is sent there, what kernels of a CPU see of it, what it has left; and who else computes."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from baton.config.container_limits import machine_memory, usable_memory
from baton.engine.kv_cache.pool_size import DeviceMemory
from baton.engine.runners.base import ModelInfo

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
"""A tensor's memory, as kernels of a CPU take it."""


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


def array_of(tensor: torch.Tensor) -> Array:
    """Return the numpy array of the same memory, on a CPU; bfloat16 as the bits, uint16."""
    array: Array = (tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor).numpy()
    return array


class MemoryRange(NamedTuple):
    """Some bytes of this process."""

    address: int
    """Of the first."""
    num_bytes: int
    """How many."""


def memory_of(tensor: torch.Tensor) -> MemoryRange:
    """Return where a dense tensor of the CPU is."""
    return MemoryRange(tensor.data_ptr(), tensor.nbytes)


def device_memory(device: torch.device, *, num_ranks: int = 1) -> DeviceMemory:
    """Return what the memory of a device has left for blocks once its model is loaded.

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


class Ranks(Protocol):
    """The place of a device among those that hold shares of one model, and how shares become whole."""

    rank: int
    """This one, from 0."""
    size: int
    """All of them, 1 or more."""

    def take_share(self, model: Any) -> None:
        """Leave this rank its share of a transformers model that `llama.support.is_llama_like` has accepted."""

    def share_of(self, info: ModelInfo) -> ModelInfo:
        """Return the description of what one rank holds of a model."""

    def sum(self, share: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors; the own one may be overwritten."""

    def join(self, share: torch.Tensor) -> torch.Tensor:
        """Return all ranks' tensors beside each other, along the last dimension."""

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, below 2**63."""


class Alone:
    """A model that one device holds whole."""

    rank = 0
    size = 1

    def take_share(self, model: Any) -> None:
        """Leave the model as it is."""

    def share_of(self, info: ModelInfo) -> ModelInfo:
        """Return the description."""
        return info

    def sum(self, share: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return share

    def join(self, share: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return share

    def least(self, number: int) -> int:
        """Return the number."""
        return number
