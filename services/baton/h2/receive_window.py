"""What a peer may send: a window of this side, opened again as its bytes are dealt with."""

from __future__ import annotations

import threading

from baton.h2.protocol import ErrorCode, ProtocolError


class ReceiveWindow:
    """One receive window. Safe from any thread.

    Bytes count as dealt with when they have been received, unless more than `num_held_bytes` of messages are held by
    their taker: then nothing is given back until some are released. A message that is being received is not held, so
    a message larger than the window gets through.

    Args:
        num_bytes: Size, as the peer was told.
        num_held_bytes: Messages that the taker may hold before the window stays shut.
    """

    def __init__(self, num_bytes: int, num_held_bytes: int) -> None:
        self._lock = threading.Lock()
        self._open = num_bytes
        self._threshold = max(1, num_bytes // 4)
        self._num_held_bytes = num_held_bytes
        self._held = 0
        self._due = 0

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

    def _give_back(self) -> int:
        if self._due < self._threshold or self._held > self._num_held_bytes:
            return 0
        due, self._due = self._due, 0
        self._open += due
        return due
