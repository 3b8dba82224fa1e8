"""Windows of connections and streams (RFC 9113, section 5.2): what the peer lets through, and what it may send."""

from __future__ import annotations

import itertools
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


class SendWindows(PeerWindows):
    """Windows of one connection whose senders wait here, each for its own stream's. Safe from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._opened: dict[int, threading.Condition] = {}
        """By stream: its window, or the connection's, may have been opened, or it has ended."""

    def open(self, stream_id: int) -> None:
        """Begin with a stream."""
        with self._lock:
            super().open(stream_id)
            self._opened[stream_id] = threading.Condition(self._lock)

    def close(self, stream_id: int) -> None:
        """End a stream; whoever waits for its window gives up."""
        with self._lock:
            super().close(stream_id)
            if opened := self._opened.pop(stream_id, None):
                opened.notify_all()

    def close_all(self) -> None:
        """End all streams."""
        with self._lock:
            self._streams.clear()
            self._wake_all()

    def take(self, stream_id: int, num_bytes: int, deadline: float | None = None) -> int:
        """Return how much of so many bytes may be sent now, 1 or more; wait for it.

        `num_bytes` is 1 or more; `deadline` is on the monotonic clock, None: as long as the stream lives. Raises
        StreamEndedError if the stream has ended, TimeoutError at the deadline.
        """
        with self._lock:
            while not (granted := self.grant(stream_id, num_bytes)):
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    raise TimeoutError("the deadline has passed")
                self._opened[stream_id].wait(remaining)
            return granted

    def add(self, stream_id: int, num_bytes: int) -> None:
        """Take note of a WINDOW_UPDATE; as `PeerWindows.add`."""
        with self._lock:
            super().add(stream_id, num_bytes)
            if opened := self._opened.get(stream_id):
                opened.notify_all()
            elif stream_id == 0:
                self._wake_all()

    def set_initial(self, num_bytes: int) -> None:
        """Take note of the peer's SETTINGS_INITIAL_WINDOW_SIZE; as `PeerWindows.set_initial`."""
        with self._lock:
            super().set_initial(num_bytes)
            self._wake_all()

    def _wake_all(self) -> None:
        for opened in self._opened.values():
            opened.notify_all()


def _checked(num_bytes: int) -> int:
    if num_bytes > LARGEST_WINDOW_BYTES:
        raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {num_bytes} bytes")
    return num_bytes


QUEUE_SECONDS = 0.001
"""A later stream makes room while what its window is opened for comes this much later than after a round trip, and less
of it than of earlier ones: it waits behind them then, and not for a slow sender."""
LEAST_WINDOW_BYTES = 32 << 10
"""A later stream's window at least while an earlier one is coming: it took a tenth of a card of 0.4 Gb/s."""
COMING_SECONDS = 0.1
"""Without a byte after which a stream does not count as coming: more than between two messages that are ready."""


class ReceiveTurns:
    """The order in which streams come to one node, over whatever connections: the earliest first. Safe from any thread.

    One after the other, streams end sooner on average than side by side, and hardly later for those who come after.
    No stream is ever stopped, so none waits in vain.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._coming: dict[int, tuple[float, int]] = {}
        """When bytes of a stream came last, and how many have, of those that are coming."""

    def begin(self) -> int:
        """Return the turn of a stream that begins now."""
        return next(self._numbers)

    def end(self, turn: int) -> None:
        """Take note that a stream has ended."""
        with self._lock:
            self._coming.pop(turn, None)

    def arrived(self, turn: int, num_bytes: int) -> int | None:
        """Take note that bytes of a stream have come; return those of earlier ones so far; None: none is coming."""
        with self._lock:
            now = self._clock()
            coming = {each: known for each, known in self._coming.items() if now - known[0] < COMING_SECONDS}
            coming[turn] = now, coming.get(turn, (now, 0))[1] + num_bytes
            self._coming = coming
            earlier = [known[1] for each, known in coming.items() if each < turn]
            return sum(earlier) if earlier else None


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
    `turns`: of the streams among which this one is the next. `round_trip_seconds`: of its idle connection. `clock`:
    seconds, monotonic.
    """

    def __init__(
        self,
        num_bytes: int,
        num_held_bytes: int,
        most_bytes: int = 0,
        *,
        turns: ReceiveTurns | None = None,
        round_trip_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = threading.Lock()
        self._turns, self._turn = turns, turns.begin() if turns else 0
        self._prompt_seconds = QUEUE_SECONDS + round_trip_seconds
        self._size = self._wanted = self._open = num_bytes
        self._most_bytes, self._num_held_bytes = most_bytes, num_held_bytes
        self._held = 0
        self._due = 0
        self._clock = clock
        self._is_behind, self._num_received, self._lead = False, 0, 0
        self._opening: tuple[int, float, int] | None = None
        """After how many bytes come those that the window was opened for last; when, and with what lead of others."""
        self._arrived = 0  # since `_since`
        self._since = clock()

    @property
    def piece_bytes(self) -> int:
        """After how many bytes it opens: whose turn it is need not wait for that, whatever the link takes."""
        return max(1, self._wanted // (2 if self._is_behind else 4))

    def received(self, num_bytes: int) -> int:
        """Take note of DATA; return by how much to open the window, 0: not yet. Raises ProtocolError beyond it."""
        with self._lock:
            if num_bytes > self._open:
                raise ProtocolError(ErrorCode.FLOW_CONTROL_ERROR, f"{num_bytes} bytes into a window of {self._open}")
            self._open -= num_bytes
            self._due += num_bytes
            self._num_received += num_bytes
            if self._size < self._most_bytes and not self._is_behind:
                self._grow(num_bytes)
            self._give_way(self._turns.arrived(self._turn, num_bytes) if self._turns else None)
            return self._give_back()

    def close(self) -> None:
        """Take note that the stream has ended: it has no turn any more, whatever of it is still to be read."""
        with self._lock:
            turns, self._turns = self._turns, None
        if turns is not None:
            turns.end(self._turn)

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

    def _give_way(self, num_earlier_bytes: int | None) -> None:
        """Want a small window behind an earlier stream, and a larger one while it does not wait for that."""
        was_behind, self._is_behind = self._is_behind, num_earlier_bytes is not None
        if num_earlier_bytes is None:
            self._wanted = self._size
            return
        self._lead = num_earlier_bytes - self._num_received
        if not was_behind:
            self._wanted, self._opening = min(self._size, LEAST_WINDOW_BYTES), None
        elif self._opening and self._num_received > self._opening[0]:
            _, opened_at, lead = self._opening
            is_queued = self._lead >= lead and self._clock() - opened_at > self._prompt_seconds
            wanted = self._wanted // 2 if is_queued else self._wanted * 2
            self._wanted, self._opening = min(self._size, max(LEAST_WINDOW_BYTES, wanted)), None

    def _give_back(self) -> int:
        due = min(self._due, self._wanted - self._open)
        if due < self.piece_bytes or self._held > self._num_held_bytes:
            return 0
        if self._opening is None:
            self._opening = self._num_received + self._open, self._clock(), self._lead
        self._due -= due
        self._open += due
        return due
