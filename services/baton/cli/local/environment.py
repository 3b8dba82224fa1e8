"""Environment of worker processes: how engines share the cores, and how memory is handed back."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from baton.config.container_limits import usable_cores

_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""glibc keeps large buffers instead of returning each to the kernel: a fifth less CPU for received KV."""

_OPENBLAS = "openblas-pthread/libblas.so.3"
"""Debian's OpenBLAS, below the library folder of the architecture; MLX on Linux ships the reference BLAS."""


def threads_per_worker(num_workers: int) -> int:
    """Return the threads of each engine where several share this machine: its part of the usable cores, 1 at least."""
    return max(1, usable_cores().num_cores // max(1, num_workers))


def worker_environment(engine: str, num_workers: int, *, library_root: Path = Path("/usr/lib")) -> Mapping[str, str]:
    """Return the variables of one worker; those that the user has set are left alone.

    `engine`: "torch", "mlx" or "mock". `num_workers`: workers on this machine, which share its cores. `library_root`:
    where Debian keeps its libraries.
    """
    threads = str(threads_per_worker(num_workers))
    wanted = {"GOMP_SPINCOUNT": "0", "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
    if sys.platform == "linux":
        wanted |= _MALLOC
        if engine == "mlx" and (libraries := sorted(library_root.glob(f"*-linux-gnu/{_OPENBLAS}"))):
            wanted["LD_PRELOAD"] = str(libraries[0])
    return {name: value for name, value in wanted.items() if name not in os.environ}
