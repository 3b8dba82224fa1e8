"""Which ranges of a memory are in use: taken in order, round and round, freed in any order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

ALIGNMENT_BYTES = 64
"""Ranges begin at multiples of this: a cache line."""


@dataclass(slots=True)
class _Range:
    begin: int
    end: int
    is_free: bool = False


class Ring:
    """Gives ranges of [0, num_bytes).

    Invariant: ranges in use do not overlap; a range is given again only after it was freed. With `tail` the begin of
    the oldest range in use and `head` the end of the youngest: where head > tail, [head, num_bytes) and [0, tail) are
    free; where head <= tail, [head, tail) is.

    Args:
        num_bytes: Size of the memory.
        max_ranges: Ranges in use at once.
    """

    def __init__(self, num_bytes: int, max_ranges: int) -> None:
        self.num_bytes = num_bytes
        self._max_ranges = max_ranges
        self._order: deque[_Range] = deque()
        self._by_begin: dict[int, _Range] = {}
        self._head = 0

    def take(self, num_bytes: int) -> int | None:
        """Return the begin of a range of this many bytes, 1 or more; None: there is no room now."""
        size = aligned(num_bytes)
        if len(self._order) >= self._max_ranges:
            return None
        begin = self._begin_of(size)
        if begin is None:
            return None
        taken = _Range(begin, begin + size)
        self._order.append(taken)
        self._by_begin[begin] = taken
        self._head = taken.end
        return begin

    def free(self, begin: int) -> None:
        """Free the range that begins here.

        Raises:
            KeyError: If none does.
        """
        self._by_begin.pop(begin).is_free = True
        while self._order and self._order[0].is_free:
            self._order.popleft()

    def _begin_of(self, size: int) -> int | None:
        if not self._order:
            return 0 if size <= self.num_bytes else None
        head, tail = self._head, self._order[0].begin
        if head <= tail:
            return head if head + size <= tail else None
        if head + size <= self.num_bytes:
            return head
        return 0 if size <= tail else None


def aligned(num_bytes: int) -> int:
    """Return the size of the range that so many bytes take."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
