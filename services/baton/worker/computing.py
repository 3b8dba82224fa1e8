"""Threads and number format of an engine, chosen by what the machine has, with the reasons that the log gives."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from baton.config.cores import Cores
from baton.worker.settings import WorkerSettings

CPU_INFO = Path("/proc/cpuinfo")
_MATRIX_UNIT = "amx_bf16"


class Computing(NamedTuple):
    """How an engine computes."""

    num_threads: int
    """CPU threads."""
    threads_cause: str
    """Why so many, and where they run."""
    dtype: Literal["float32", "float16", "bfloat16"]
    """Of weights and KV cache."""
    dtype_cause: str
    """Why this."""


def choose_computing(settings: WorkerSettings, cores: Cores, cpu_info: Path = CPU_INFO) -> Computing:
    """Return what settings leave open as the machine suggests it.

    Args:
        settings: Of the node.
        cores: That the process may use.
        cpu_info: File with the processor's abilities, of Linux.
    """
    threads_cause = "num_threads says so"
    if not settings.num_threads:
        left = "one left to the event loop and the network" if cores.num_cores > 1 else "none left over"
        threads_cause = f"cores: {cores.cause}; {left}"
    num_threads = settings.num_threads or max(1, cores.num_cores - 1)
    where = "not pinned: they stay where the affinity of the process lets the system move them"
    dtype, dtype_cause = settings.dtype, "dtype says so"
    if dtype == "auto":
        dtype, dtype_cause = _choose_dtype(settings, cpu_info)
    return Computing(num_threads, f"{threads_cause}; {where}", dtype, dtype_cause)


def _choose_dtype(settings: WorkerSettings, cpu_info: Path) -> tuple[Literal["float32", "bfloat16"], str]:
    if settings.engine == "mlx":
        return "bfloat16", "MLX computes it at full speed on Apple silicon"
    if settings.engine == "torch" and settings.device != "cpu":
        return "bfloat16", "GPUs multiply it many times as fast as float32"
    if _MATRIX_UNIT in (cpu_info.read_text(encoding="utf-8").split() if cpu_info.is_file() else ()):
        return "bfloat16", f"the processor has {_MATRIX_UNIT}"
    return "float32", f"the processor has no {_MATRIX_UNIT}"
