"""Whether Triton's kernels compute, or torch and the CPU's own kernels."""

from __future__ import annotations

import os

import torch

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton runs its kernels on the CPU, operation by operation: all that CUDA does can then be tried there."""


def runs_triton(device: torch.device) -> bool:
    """Return whether Triton's kernels compute on a device."""
    return device.type == "cuda" or IS_INTERPRETED
