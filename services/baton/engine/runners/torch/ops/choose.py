"""Chooses what a device does for a model: the one place that asks of which kind it is."""

from __future__ import annotations

import os

import torch

from baton.engine.runners.torch.ops.cpu.checks import cpu_paths
from baton.engine.runners.torch.ops.cpu.ops import CpuOps, OneThreadOps
from baton.engine.runners.torch.ops.cuda.ops import CudaOps, TritonOps
from baton.engine.runners.torch.ops.device_ops import DeviceOps

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether Triton runs its kernels on the CPU, operation by operation: all that CUDA does can then be tried there."""


def choose_ops(device: torch.device, dtype: torch.dtype) -> DeviceOps:
    """Return a device's operations by the kernels that are right and fastest there, for torch's threads."""
    if device.type == "cuda":
        return CudaOps(device)
    if IS_INTERPRETED:
        return TritonOps(device)
    if device.type != "cpu":
        return DeviceOps(device)
    paths = cpu_paths(dtype, torch.get_num_threads())
    is_of_kernels = paths.computes_layers and paths.num_threads == 1
    return OneThreadOps(device, paths) if is_of_kernels else CpuOps(device, paths)
