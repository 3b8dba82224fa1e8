"""What may be sent: the peer's windows for the connection and for each stream (RFC 9113, section 5.2)."""

from __future__ import annotations

import threading
import time

from baton.h2.protocol import DEFAULT_WINDOW_BYTES, LARGEST_WINDOW_BYTES, ErrorCode, ProtocolError


class StreamEndedError(Exception):
    """A stream was cancelled, or its connection lost, while somebody sent on it."""


class SendWindows:
    """Windows of one connection; senders wait here. Safe from any thread.

    Invariant: what was taken and not given back never exceeds the least of both windows. A window may be negative after
    the peer has lowered its initial size.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._initial = DEFAULT_WINDOW_BYTES
        self._connection = DEFAULT_WINDOW_BYTES
        self._streams: dict[int, int] = {}

    def open(self, stream_id: int) -> None:
        """Begin with a stream."""
        with self._changed:
            self._streams[stream_id] = self._initial

    def close(self, stream_id: int) -> None:
        """End a stream; whoever waits for its window gives up."""
        with self._changed:
            self._streams.pop(stream_id, None)
            self._changed.notify_all()

    def close_all(self) -> None:
        """End all streams."""
        with self._changed:
            self._streams.clear()
            self._changed.notify_all()

    def take(self, stream_id: int, num_bytes: int, deadline: float | None = None) -> int:
        """Return how much of `num_bytes` may be sent now, 1 or more; wait for it.

        Args:
            stream_id: The stream.
            num_bytes: Wanted, 1 or more.
            deadline: On the monotonic clock; None: as long as the stream lives.

        Raises:
            StreamEndedError: If the stream has ended.
            TimeoutError: At the deadline.
        """
        with self._changed:
            while True:
                if stream_id not in self._streams:
                    raise StreamEndedError(f"stream {stream_id} has ended")
                granted = min(num_bytes, self._connection, self._streams[stream_id])
                if granted > 0:
                    self._connection -= granted
                    self._streams[stream_id] -= granted
                    return granted
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise TimeoutError("the deadline has passed")
                self._changed.wait(remaining)

    def add(self, stream_id: int, num_bytes: int) -> None:
        """Take note of a WINDOW_UPDATE; 0 is the connection.

        Raises:
            ProtocolError: If it is 0 or the window grows too large.
        """
        if num_bytes == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
        with self._changed:
            if stream_id == 0:
                self._connection = _checked(self._connection + num_bytes)
            elif stream_id in self._streams:
                self._streams[stream_id] = _checked(self._streams[stream_id] + num_bytes)
            self._changed.notify_all()

    def set_initial(self, num_bytes: int) -> None:
        """Take note of the peer's SETTINGS_INITIAL_WINDOW_SIZE; open streams change by the difference.

        Raises:
            ProtocolError: If a window grows too large.
        """
        _checked(num_bytes)
        with self._changed:
            change = num_bytes - self._initial
            self._initial = num_bytes
            for stream_id, window in self._streams.items():
                self._streams[stream_id] = _checked(window + change)
            self._changed.notify_all()


def _checked(num_bytes: int) -> int:
    if num_bytes > LARGEST_WINDOW_BYTES:
        raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {num_bytes} bytes")
    return num_bytes
