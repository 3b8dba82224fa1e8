"""What a device can do at best: multiply, read its memory, send to the host."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_REPEATS = 5


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of some work, all that the device does for it included."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the least time of several runs, after one that does not count."""
    work()
    return min(seconds_of(work, device) for _ in range(_REPEATS))


def matmul_flops(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP/s of a square product."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2.0 * size**3 / best_seconds(lambda: left @ right, device)


def memory_bytes_per_second(num_bytes: int, device: torch.device) -> float:
    """Return the bytes read and written per second by a copy within the device's memory."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * num_bytes / best_seconds(lambda: target.copy_(source), device)


def host_bytes_per_second(num_bytes: int, device: torch.device) -> float:
    """Return the bytes per second from the device into pinned memory of the host."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return num_bytes / best_seconds(lambda: target.copy_(source, non_blocking=True), device)
