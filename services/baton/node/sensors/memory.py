"""Main memory of the machine, and whether the system is short of it: on a Mac, where a GPU has the same, by its word.

Source: the kernel's own verdict, which Activity Monitor shows in green, yellow and red: 1, 2 or 4 in
kern.memorystatus_vm_pressure_level, read without a privilege (xnu, bsd/kern/kern_memorystatus_notify.c). Numbers of
free pages say little there: they are few on a healthy Mac, too.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
from collections.abc import Awaitable, Callable

import psutil

from baton.config.container_limits import usable_memory
from baton.config.memory_budget import RESERVED_SHARE
from baton.internal.v1.node_pb2 import SystemSample

log = logging.getLogger(__name__)

_LEVEL_NAME = b"kern.memorystatus_vm_pressure_level"
_CRITICAL = 4
"""Red. Yellow is where a Mac may be for hours that holds a large model."""
_READ_SECONDS = 1.0

ReadPressure = Callable[[], bool]
"""Returns whether memory is short."""


def read_memory(sample: SystemSample) -> None:
    """Fill in memory and swap."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    sample.memory_byte_count, sample.available_memory_byte_count = memory.total, memory.available
    sample.swap_byte_count, sample.available_swap_byte_count = swap.total, swap.free


def open_pressure(platform: str = sys.platform) -> ReadPressure | None:
    """Return what reads the kernel's verdict, which is not "short" where it fails; None on systems without one."""
    if platform != "darwin":
        return None
    told = set[int]()
    system_control = ctypes.CDLL(None, use_errno=True).sysctlbyname

    def read() -> bool:
        level = ctypes.c_int(0)
        size = ctypes.c_size_t(ctypes.sizeof(level))
        is_unread = system_control(_LEVEL_NAME, ctypes.byref(level), ctypes.byref(size), None, ctypes.c_size_t(0))
        if is_unread and (error := ctypes.get_errno()) not in told:  # it is asked every second
            told.add(error)
            log.warning("memory_pressure_unknown cause=%r", os.strerror(error))
        return level.value >= _CRITICAL

    return read


def open_judge(platform: str = sys.platform) -> ReadPressure:
    """Return the kernel's verdict, or where it has none, whether less than a tenth is left of what is free now."""
    reserved_bytes = int(RESERVED_SHARE * usable_memory().free_bytes)
    return open_pressure(platform) or (lambda: usable_memory().free_bytes < reserved_bytes)


async def watch_pressure(
    read: ReadPressure | None, tell: Callable[[bool], None], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> None:
    """Tell of every change, and again and again while memory is short.

    What is given back once is soon kept again by who goes on computing: so it is asked for every second. `tell` is
    called with whether memory is short; at first it is not, and nobody is told.
    """
    is_short = False
    while read is not None:
        found = read()
        if found != is_short:
            log.warning("memory_pressure is_short=%s", found)
        if found or is_short:
            tell(found)
        is_short = found
        await sleep(_READ_SECONDS)
