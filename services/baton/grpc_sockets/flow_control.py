"""Windows of connections and streams (RFC 9113, section 5.2): what the peer lets through, and what it may send."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from baton.grpc_sockets.frames import DEFAULT_WINDOW_BYTES, LARGEST_WINDOW_BYTES, ErrorCode, ProtocolError


class StreamEndedError(Exception):
    """A stream was cancelled, or its connection lost, while somebody sent on it."""


_MOST_UPDATES = 2_000
_UPDATES_PER_GRANT, _BYTES_PER_UPDATE = 10, 1024
"""What is sent lets the peer open windows so often; one that does it more often has nothing to open them for."""


class PeerWindows:
    """What the peer takes on one connection and on each stream; for one thread, or an event loop.

    Invariant: what was granted and not given back never exceeds the least of both windows. A window may be negative
    after the peer has lowered its initial size.
    """

    def __init__(self) -> None:
        self._initial = DEFAULT_WINDOW_BYTES
        self._connection = DEFAULT_WINDOW_BYTES
        self._streams: dict[int, int] = {}
        self._num_updates_left = _MOST_UPDATES

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def open(self, stream_id: int) -> None:
        """Begin with a stream."""
        self._streams[stream_id] = self._initial

    def close(self, stream_id: int) -> None:
        """End a stream: nothing more is granted to it."""
        self._streams.pop(stream_id, None)

    def grant(self, stream_id: int, num_bytes: int) -> int:
        """Take what a stream may send of `num_bytes` from its windows; raise StreamEndedError if it has ended."""
        if stream_id not in self._streams:
            raise StreamEndedError(f"stream {stream_id} has ended")
        granted = max(0, min(num_bytes, self._connection, self._streams[stream_id]))
        self._connection -= granted
        self._streams[stream_id] -= granted
        if granted:
            more = _UPDATES_PER_GRANT + granted // _BYTES_PER_UPDATE
            self._num_updates_left = min(_MOST_UPDATES, self._num_updates_left + more)
        return granted

    def add(self, stream_id: int, num_bytes: int) -> None:
        """Note a WINDOW_UPDATE; 0 is the connection. Raises ProtocolError if it is 0, too large, or one too many."""
        if num_bytes == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0 bytes")
        self._num_updates_left -= 1
        if self._num_updates_left < 0:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many WINDOW_UPDATE frames")
        if stream_id == 0:
            self._connection = _checked(self._connection + num_bytes)
        elif stream_id in self._streams:
            self._streams[stream_id] = _checked(self._streams[stream_id] + num_bytes)

    def set_initial(self, num_bytes: int) -> None:
        """Change open streams by the peer's INITIAL_WINDOW_SIZE; raise ProtocolError if a window grows too large."""
        change, self._initial = _checked(num_bytes) - self._initial, num_bytes
        for stream_id, window in self._streams.items():
            self._streams[stream_id] = _checked(window + change)


GIVE_WAY_SECONDS = 0.015
"""For which a later stream waits at least while an earlier one's window is shut, and for three times as long as the
window took to open before. Where it takes longer, since what has come is not taken, the later one uses what is left."""
MAX_GIVE_WAY_SECONDS = 0.1
"""For which it waits at most."""
TURN_BYTES = 256 << 10
"""That a later stream sends at once, where the earlier one has just nothing to send."""
PATIENCE_SECONDS = 2.0
"""For which a message waits so at most: whoever is to get it takes a longer silence for a stream that has broken."""
_SMALL_BYTES = 64 << 10  # a message no larger than this waits for none of other streams


class SendWindows(PeerWindows):
    """Windows of one connection whose senders wait here, the earliest stream's first. Safe from any thread.

    One after the other, streams end sooner on average than side by side, and nobody's end depends on who comes after.
    """

    def __init__(self) -> None:
        super().__init__()
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._turns = threading.Condition(lock)
        """For those behind an earlier stream: nobody wakes them for every window that opens."""
        self._sending: dict[int, float] = {}
        """Streams with a large message under way, and since when."""
        self._opened: dict[int, tuple[float, float]] = {}
        """When the peer last opened a stream's window, and how long after the time before."""

    def open(self, stream_id: int) -> None:
        """Begin with a stream."""
        with self._changed:
            super().open(stream_id)

    def close(self, stream_id: int) -> None:
        """End a stream; whoever waits for its window gives up."""
        with self._changed:
            super().close(stream_id)
            self._sending.pop(stream_id, None)
            self._opened.pop(stream_id, None)
            self._changed.notify_all()
            self._turns.notify_all()

    def close_all(self) -> None:
        """End all streams."""
        with self._changed:
            self._streams.clear()
            self._sending.clear()
            self._changed.notify_all()
            self._turns.notify_all()

    def take(
        self, stream_id: int, num_left: int, deadline: float | None = None, *, most: int = LARGEST_WINDOW_BYTES
    ) -> int:
        """Return how much of what is left of a message may be sent now, 1 or more and `most` at most; wait for it.

        `num_left` is 1 or more; `deadline` is on the monotonic clock, None: as long as the stream lives. Raises
        StreamEndedError if the stream has ended, TimeoutError at the deadline.
        """
        with self._changed:
            if num_left > _SMALL_BYTES and stream_id in self._streams:
                self._sending.setdefault(stream_id, time.monotonic())
            is_first = stream_id == next(iter(self._streams), stream_id)  # they are opened in order
            most = min(most, num_left, most if is_first else TURN_BYTES)
            while (is_behind := self._is_behind(stream_id)) or not (granted := self.grant(stream_id, most)):
                remaining = math.inf if deadline is None else deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutError("the deadline has passed")
                if is_behind:
                    self._turns.wait(min(remaining, GIVE_WAY_SECONDS))
                else:
                    self._changed.wait(None if deadline is None else remaining)
            if granted == num_left and self._sending.pop(stream_id, 0.0):
                self._turns.notify_all()
            return granted

    def _is_behind(self, stream_id: int) -> bool:
        """Return whether the earliest stream with a large message can send, or could of late and waits for its window.

        A connection writes one frame at a time, so nothing is lost by it.
        """
        if len(self._sending) < 2 or stream_id not in self._sending:
            return False
        earlier, now = min(self._sending), time.monotonic()
        opened_at, took = self._opened.get(earlier, (0.0, 0.0))
        give_way = min(max(GIVE_WAY_SECONDS, 3 * took), MAX_GIVE_WAY_SECONDS)
        goes_on = self._streams[earlier] > 0 or now - opened_at < give_way
        patience = PATIENCE_SECONDS / (1 if give_way == GIVE_WAY_SECONDS else 4)  # who takes may be slow, not the link
        return earlier < stream_id and goes_on and now - self._sending[stream_id] < patience

    def add(self, stream_id: int, num_bytes: int) -> None:
        """Take note of a WINDOW_UPDATE; as `PeerWindows.add`."""
        with self._changed:
            super().add(stream_id, num_bytes)
            if stream_id in self._streams:
                now = time.monotonic()
                self._opened[stream_id] = now, now - self._opened.get(stream_id, (now, 0.0))[0]
            self._changed.notify_all()

    def set_initial(self, num_bytes: int) -> None:
        """Take note of the peer's SETTINGS_INITIAL_WINDOW_SIZE; as `PeerWindows.set_initial`."""
        with self._changed:
            super().set_initial(num_bytes)
            self._changed.notify_all()


def _checked(num_bytes: int) -> int:
    if num_bytes > LARGEST_WINDOW_BYTES:
        raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {num_bytes} bytes")
    return num_bytes


GROWTH_SECONDS = 0.004
"""A window that a peer fills within this time is doubled: 1 MiB at 2 Gb/s, 2 MiB at 4 Gb/s."""


class ReceiveWindow:
    """One receive window. Safe from any thread.

    A narrow link gets a small one, since what is on its way delays whatever overtakes the rest; a fast peer one so
    large that it need not stop for the updates of this side, each of which wakes two threads.

    Bytes count as dealt with when they have been received, unless more than `num_held_bytes` of messages are held by
    their taker: then nothing is given back until some are released. A message that is being received is not held, so a
    message larger than the window gets through. `num_bytes`: size, as the peer was told. `num_held_bytes`: messages
    that the taker may hold before the window stays shut. `most_bytes`: size up to which it grows; 0: it stays as it is.
    `clock`: seconds, monotonic.
    """

    def __init__(
        self, num_bytes: int, num_held_bytes: int, most_bytes: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock = threading.Lock()
        self._size = self._open = num_bytes
        self._most_bytes, self._num_held_bytes = most_bytes, num_held_bytes
        self._held = 0
        self._due = 0
        self._clock = clock
        self._arrived = 0  # since `_since`
        self._since = clock()

    @property
    def piece_bytes(self) -> int:
        """After how many bytes it opens: the peer need not wait for that then, whatever the link takes."""
        return max(1, self._size // 4)

    def received(self, num_bytes: int) -> int:
        """Take note of DATA; return by how much to open the window, 0: not yet. Raises ProtocolError beyond it."""
        with self._lock:
            if num_bytes > self._open:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"{num_bytes} bytes into a window of {self._open}")
            self._open -= num_bytes
            self._due += num_bytes
            if self._size < self._most_bytes:
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
        if self._due < self.piece_bytes or self._held > self._num_held_bytes:
            return 0
        due, self._due = self._due, 0
        self._open += due
        return due
