"""What a node needs, checked before its process starts: in milliseconds, without a framework, in the words of its own.

A node checks all of it again while it loads; here nobody waits for that, and nothing has to be stopped.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import NamedTuple

from baton.config.container_limits import Memory, usable_cores
from baton.config.memory_budget import told
from baton.engine.checkpoint.engine_support import check_mlx_computes, stays_packed_by_torch
from baton.engine.checkpoint.lora import read_adapters
from baton.engine.checkpoint.model_folder import Checkpoint
from baton.engine.runners.base import kv_dtype_of
from baton.errors import ConfigurationError
from baton.installation import install_line
from baton.node.loading import check_engine_has, choose_computing
from baton.node.settings import NodeSettings

_PACKAGES: Mapping[str, Sequence[str]] = {"torch": ("torch", "transformers"), "mlx": ("mlx", "mlx_lm")}
"""What an engine imports."""
_ROUNDED_BITS = {"int8": 8, "fp8": 8, "int4": 4}


class NodeNeeds(NamedTuple):
    """What a node that can be started will take."""

    where: str
    """Engine and device, e.g. "torch on cpu"."""
    dtype: str
    """Number format of its weights, and of K and V."""
    main_bytes: int
    """Main memory of its weights; 0 where they are elsewhere, or there are none."""


def check_node(settings: NodeSettings, checkpoint: Checkpoint) -> NodeNeeds:
    """Return what a node will take; raise ConfigurationError naming key and remedy if it could not start."""
    check_engine_has(settings)
    _check_installed(settings.engine)
    _check_device(settings)
    if settings.engine == "mlx":
        check_mlx_computes(checkpoint)
    elif not stays_packed_by_torch(checkpoint):
        checkpoint = checkpoint.unpacked()
    if settings.engine != "mock":
        read_adapters(settings.adapter_folders, checkpoint)
    dtype = choose_computing(settings, usable_cores()).dtype
    place = f" on {settings.device}" if settings.engine == "torch" else ""
    return NodeNeeds(f"{settings.engine}{place}", dtype, _main_bytes(settings, checkpoint, dtype))


def check_main_memory(needs: Mapping[str, NodeNeeds], memory: Memory) -> str:
    """Return a line on what weights take; raise ConfigurationError with the sum if memory is too small."""
    total = sum(need.main_bytes for need in needs.values())
    parts = " + ".join(f"{told(need.main_bytes)} ({node})" for node, need in needs.items() if need.main_bytes)
    if total > memory.free_bytes:
        is_wide = any(need.dtype == "float32" and need.main_bytes for need in needs.values())
        remedy = 'dtype = "bfloat16" in a --nodes file halves them' if is_wide else "use a smaller model"
        raise ConfigurationError(
            f"memory: weights of {parts} = {told(total)} do not fit into the {told(memory.free_bytes)} that are free: "
            f'{remedy}; one [[node]] with role = "worker" loads them once'
        )
    return f"weights of {parts or 'none'}; {told(memory.free_bytes)} are free"


def _main_bytes(settings: NodeSettings, checkpoint: Checkpoint, dtype: str) -> int:
    is_elsewhere = settings.engine == "mock" or (settings.engine == "torch" and settings.device != "cpu")
    if is_elsewhere:
        return 0
    num_bytes = checkpoint.held_bytes(kv_dtype_of(dtype))
    bits = _ROUNDED_BITS.get(settings.weight_dtype)
    return num_bytes if bits is None else checkpoint.num_parameters * bits // 8


def _check_installed(engine: str) -> None:
    missing = [package for package in _PACKAGES.get(engine, ()) if importlib.util.find_spec(package) is None]
    if missing:
        raise ConfigurationError(
            f"engine {engine}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed; "
            f"{install_line(engine)}"
        )


def _check_device(settings: NodeSettings) -> None:
    """Refuse devices that are not there, as far as that is known without torch."""
    if settings.engine != "torch":
        return
    found = re.fullmatch(r"(cpu|cuda|mps|xpu)(?::(\d+))?", settings.device)
    if found is None:
        raise ConfigurationError(f"device {settings.device!r}: expected cpu, cuda, cuda:N or mps")
    if found[1] != "cuda":
        return
    if not _torch_has_cuda():
        raise ConfigurationError(
            f"device {settings.device!r}: the torch that is installed is built without CUDA; "
            "install the one that https://pytorch.org names for it, or use device cpu"
        )
    first, num_present = int(found[2] or 0), _num_cuda_devices()
    if first + settings.tensor_parallel > num_present:
        wanted = f"cuda:{first + settings.tensor_parallel - 1}"
        raise ConfigurationError(
            f"device {wanted!r} is not present: this machine shows {num_present} CUDA devices (see nvidia-smi and "
            "CUDA_VISIBLE_DEVICES); use device cpu, or one of those"
        )


def _torch_has_cuda() -> bool:
    """Return whether torch is built for it, as its version says; it takes seconds to import."""
    return not metadata.version("torch").endswith("+cpu")


def _num_cuda_devices() -> int:
    """Return how many devices the driver shows to this process."""
    try:
        driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(0)
    except OSError:
        return 0
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
