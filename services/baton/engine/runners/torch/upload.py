"""Moves what the host has planned to the device without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch


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
