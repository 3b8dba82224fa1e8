"""The sender's side: takes a receiver's offer of memory and writes into it what the receiver does not read.

Which ranges of a memory are in use: taken in order, round and round, freed in any order.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from baton.shm.lender import CAN_SEAL, MAX_RANGES, NAME_PREFIX, OFFSET, TOKEN_BYTES, Segment, open_segment

Buffer = bytes | bytearray | memoryview

_HANDSHAKE_SECONDS = 1.0
_LARGEST_SHARE = 3
"""Of a memory of n bytes, a range has n / 3 at most. A receiver may hold the last range until it has heard of the next
one: that always fits then, behind the last or before it."""
_READ_BYTES = OFFSET.size * MAX_RANGES


class Borrowed:
    """A receiver's memory, for one stream. `place` is for one thread at a time; `close` for any.

    Invariant: only ranges that the receiver has released, or never had, are written; after `close`, and when the
    receiver has ended the loan, none is.
    """

    def __init__(self, segment: Segment, connection: socket.socket) -> None:
        self._memory = segment.memory
        self._connection = connection
        self._ring = Ring(segment.num_bytes, MAX_RANGES)
        self._unread = b""
        self._is_over = False
        self.had_room_at = -math.inf
        """When there was room again for what had to wait for it the last, `time.perf_counter` seconds."""
        weakref.finalize(self, connection.close).atexit = False

    def place(self, parts: Sequence[Buffer], timeout_seconds: float | None = None) -> int | None:
        """Write buffers one after the other; return where they begin. Waits until there is room.

        There is 1 byte or more; without a timeout it waits until the receiver releases ranges or ends the loan. Returns
        None if they are more than a third of the memory, or the loan has ended. Raises TimeoutError if there is no room
        in time.
        """
        num_bytes = sum(map(len, parts))
        if aligned(num_bytes) > self._ring.num_bytes // _LARGEST_SHARE:
            return None
        begin = self._take(num_bytes, None if timeout_seconds is None else time.monotonic() + timeout_seconds)
        if begin is None:
            return None
        position = begin
        for part in parts:
            np.copyto(self._memory[position : position + len(part)], np.frombuffer(part, np.uint8))  # without the GIL
            position += len(part)
        return begin

    def close(self) -> None:
        """End the loan; whoever waits in `place` wakes."""
        self._is_over = True
        with contextlib.suppress(OSError):  # the receiver was first
            self._connection.shutdown(socket.SHUT_RDWR)

    def _take(self, num_bytes: int, deadline: float | None) -> int | None:
        """Return the begin of a range, waiting for it until the deadline; None: the loan has ended."""
        self._collect(0.0)
        begin = self._ring.take(num_bytes)
        while not self._is_over:
            if begin is not None:
                return begin
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("the receiver has not released any memory in time")
            self._collect(None if deadline is None else max(0.0, deadline - time.monotonic()))
            begin, self.had_room_at = self._ring.take(num_bytes), time.perf_counter()
        return None

    def _collect(self, timeout_seconds: float | None) -> None:
        """Take note of released ranges, waiting for the first of them."""
        try:
            self._connection.settimeout(timeout_seconds)
            data = self._connection.recv(_READ_BYTES)
        except (BlockingIOError, TimeoutError):
            return
        except OSError:
            data = b""
        if not data:
            self._is_over = True
            return
        data, whole = self._unread + data, (len(self._unread) + len(data)) // OFFSET.size * OFFSET.size
        self._unread = data[whole:]
        for (begin,) in OFFSET.iter_unpack(data[:whole]):
            try:
                self._ring.free(begin)
            except KeyError:  # a receiver that cannot be trusted gets no further ranges
                self._is_over = True


def borrow(address: bytes, token: bytes, *, can_seal: bool = CAN_SEAL) -> Borrowed:
    """Take an offer; raise OSError if the receiver is out of reach, or on another host, ValueError if it is none."""
    name = address[1:] if address[:1] == b"\0" else os.fsencode(Path(os.fsdecode(address)).name)
    if not name.startswith(NAME_PREFIX.encode()) or b"\0" in name or len(token) != TOKEN_BYTES:
        raise ValueError("the offer of memory names no receiver of Baton")
    connection = socket.socket(socket.AF_UNIX)
    descriptors: list[int] = []
    try:
        connection.settimeout(_HANDSHAKE_SECONDS)
        connection.connect(address)
        connection.sendall(token)
        size, descriptors, _, _ = socket.recv_fds(connection, OFFSET.size, 1)
        if len(size) != OFFSET.size or len(descriptors) != 1:
            raise OSError("the receiver gives no memory")
        segment = open_segment(descriptors.pop(), OFFSET.unpack(size)[0], can_seal=can_seal)
    except OSError:
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return Borrowed(segment, connection)


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
        """Free the range that begins here; raise KeyError if none does."""
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
