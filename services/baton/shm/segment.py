"""Memory without a name that two processes can map: it is gone when the last of them is, however they end."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import weakref

import numpy as np

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

CAN_SEAL = hasattr(os, "memfd_create")
"""Whether this system has anonymous files whose size can be sealed (Linux)."""


class Segment:
    """Memory behind a descriptor, which can be handed to another process.

    Raises:
        OSError: If it cannot be mapped.
    """

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.descriptor = descriptor
        self.num_bytes = num_bytes
        weakref.finalize(self, os.close, descriptor).atexit = False
        self.memory: Bytes = np.frombuffer(mmap.mmap(descriptor, num_bytes), np.uint8)
        """The memory; mapped as long as any view of it lives."""


def create_segment(num_bytes: int, *, can_seal: bool = CAN_SEAL) -> Segment:
    """Return fresh memory of zeros.

    `can_seal`: no process can change its size, for who reads past the end of a file dies.

    Raises:
        OSError: If the system gives none.
    """
    descriptor = _sealed_file(num_bytes) if can_seal else _unnamed_file(num_bytes)
    return Segment(descriptor, num_bytes)


def open_segment(descriptor: int, num_bytes: int, *, can_seal: bool = CAN_SEAL) -> Segment:
    """Return the memory behind a descriptor that another process has sent; it is closed where that fails.

    Raises:
        OSError: If there is less memory than that, or it may shrink.
    """
    try:
        if not 0 < num_bytes <= os.fstat(descriptor).st_size:
            raise OSError(f"the other process promised {num_bytes} bytes, {os.fstat(descriptor).st_size} are there")
        if can_seal and not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise OSError("the other process could make the memory smaller")
    except OSError:
        os.close(descriptor)
        raise
    return Segment(descriptor, num_bytes)


def _sealed_file(num_bytes: int) -> int:
    descriptor = os.memfd_create("baton-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, num_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _unnamed_file(num_bytes: int) -> int:
    """Return a file whose name is gone; it is written, because a full disk must not show in a later access."""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(num_bytes))
        file.flush()
        return os.dup(file.fileno())
