"""Main memory of the machine, and the peak of this process."""

from __future__ import annotations

import resource
import sys

import psutil

from baton.v1.node_pb2 import SystemSample


def read_memory(sample: SystemSample) -> None:
    """Fill in memory and swap."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    sample.memory_byte_count, sample.available_memory_byte_count = memory.total, memory.available
    sample.swap_byte_count, sample.available_swap_byte_count = swap.total, swap.free


def peak_resident_bytes() -> int:
    """Return the most memory that this process has had resident since its start."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kibibytes elsewhere
