"""Host memory into which frames are received, used again and again: fresh memory costs a page fault per 4 KiB."""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np

_SMALLEST_BYTES = 64 << 10
"""Less is given from the allocator, which keeps small memory itself."""
_CLASSES_PER_DOUBLING = 4


class StagingPool:
    """Gives memory to one reader after another. Safe from any thread.

    Invariant: memory is given again only after every view of it has gone, whoever held it and however it ended: the
    pool is told by the death of the object that all views keep alive. So nobody gives anything back, and nothing late
    can write into, or read from, a frame that is not its own.

    Args:
        max_idle_bytes: Memory kept while nobody uses it.
    """

    def __init__(self, max_idle_bytes: int = 256 << 20) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._idle: dict[int, deque[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = {}

    def give(self, num_bytes: int) -> memoryview:
        """Return writable memory with any content."""
        if num_bytes < _SMALLEST_BYTES:
            return memoryview(bytearray(num_bytes))
        size = _class_bytes(num_bytes)
        try:
            memory = self._idle[size].pop()
        except (KeyError, IndexError):
            memory = np.empty(size, np.uint8)
        lease = memory.view()
        # The callback may run inside any allocation of any thread, so it takes no lock: a deque's append is atomic.
        weakref.finalize(lease, self._take_back, memory).atexit = False
        return lease.data[:num_bytes]

    @property
    def num_idle_bytes(self) -> int:
        """Return the memory that nobody uses."""
        return sum(size * len(idle) for size, idle in list(self._idle.items()))

    def _take_back(self, memory: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        if self.num_idle_bytes + memory.nbytes <= self._max_idle_bytes:
            self._idle.setdefault(memory.nbytes, deque()).append(memory)


def _class_bytes(num_bytes: int) -> int:
    """Return the next size of which memory is kept: four sizes per doubling, so at most a quarter lies unused."""
    step = max(1, (1 << (num_bytes - 1).bit_length() - 1) // _CLASSES_PER_DOUBLING)
    return -(-num_bytes // step) * step
