"""What a peer may send: a window of this side, opened again as its bytes are dealt with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from baton.h2.protocol import ErrorCode, ProtocolError

GROWTH_SECONDS = 0.004
"""A window that a peer fills within this time is doubled: 1 MiB at 2 Gb/s, 2 MiB at 4 Gb/s."""


class ReceiveWindow:
    """One receive window. Safe from any thread.

    A narrow link gets a small one, since what is on its way delays whatever overtakes the rest; a fast peer one so
    large that it need not stop for the updates of this side, each of which wakes two threads.

    Bytes count as dealt with when they have been received, unless more than `num_held_bytes` of messages are held by
    their taker: then nothing is given back until some are released. A message that is being received is not held, so
    a message larger than the window gets through.

    Args:
        num_bytes: Size, as the peer was told.
        num_held_bytes: Messages that the taker may hold before the window stays shut.
        most_bytes: Size up to which it grows; 0: it stays as it is.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        num_bytes: int,
        num_held_bytes: int,
        most_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._size = self._open = num_bytes
        self._most_bytes = most_bytes
        self._num_held_bytes = num_held_bytes
        self._held = 0
        self._due = 0
        self._clock = clock
        self._arrived = 0  # since `_since`
        self._since = clock()

    @property
    def _grows(self) -> bool:
        return self._size < self._most_bytes

    def received(self, num_bytes: int) -> int:
        """Take note of bytes of DATA frames; return by how much the peer's window is to be opened, 0: not yet.

        Raises:
            ProtocolError: If the peer had no window for them.
        """
        with self._lock:
            if num_bytes > self._open:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"{num_bytes} bytes into a window of {self._open}")
            self._open -= num_bytes
            self._due += num_bytes
            if self._grows:
                self._grow(num_bytes)
            return self._give_back()

    def hold(self, num_bytes: int) -> None:
        """Take note of a message that was handed on."""
        with self._lock:
            self._held += num_bytes

    def release(self, num_bytes: int) -> int:
        """Take note of a message that its taker is done with; return by how much the window is to be opened."""
        with self._lock:
            self._held -= num_bytes
            return self._give_back()

    def _grow(self, num_bytes: int) -> None:
        self._arrived += num_bytes
        if self._arrived < self._size:
            return
        now = self._clock()
        if now - self._since < GROWTH_SECONDS:
            more = min(self._size, self._most_bytes - self._size)
            self._size += more
            self._due += more
        self._arrived, self._since = 0, now

    def _give_back(self) -> int:
        if self._due < max(1, self._size // 4) or self._held > self._num_held_bytes:
            return 0
        due, self._due = self._due, 0
        self._open += due
        return due
