"""Bounds what all KV streams of a prefill node together hold of frames that wait to be sent."""

from __future__ import annotations

import threading
from collections.abc import Callable

from baton.kv.layout import KvLayout
from baton.kv.stream import KvFrame


class OutboxBudget:
    """Memory for frames that wait. Safe from any thread.

    Invariant: the prompts that have begun have not more than `max_bytes` left to send, together; or one of them alone
    has, because it could never begin otherwise. The engine never waits for a network: it begins with a prompt only when
    all of its KV has room.

    Args:
        max_bytes: Bound, in the cache's number format.
        on_room: Called, from any thread, when a prompt that was put off may begin.
    """

    def __init__(self, max_bytes: int, on_room: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._on_room = on_room
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._has_waiting = False

    @property
    def num_bytes(self) -> int:
        """Return the bytes that prompts which have begun have left to send."""
        return self._num_bytes

    def share(self, layout: KvLayout, num_bytes: int) -> OutboxShare:
        """Return the share of a stream that owes this much; nothing is taken yet."""
        return OutboxShare(self, layout, num_bytes)

    def take(self, num_bytes: int) -> bool:
        """Take bytes, if there is room."""
        with self._lock:
            if self._num_bytes and self._num_bytes + num_bytes > self._max_bytes:
                self._has_waiting = True
                return False
            self._num_bytes += num_bytes
            return True

    def give_back(self, num_bytes: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._num_bytes -= num_bytes
            is_awaited = self._has_waiting and num_bytes > 0
            self._has_waiting = self._has_waiting and not is_awaited
        if is_awaited:
            self._on_room()


class OutboxShare:
    """What one stream has of the budget, from the moment at which its prompt begins until its end."""

    def __init__(self, budget: OutboxBudget, layout: KvLayout, num_bytes: int) -> None:
        self._budget = budget
        self._layout = layout
        self._num_bytes = num_bytes
        self._lock = threading.Lock()
        self._num_taken_bytes = 0
        self._has_begun = False
        self._is_closed = False

    def may_begin(self) -> bool:
        """Take the share, if there is room for it; from the engine's thread."""
        with self._lock:
            if not self._has_begun and not self._is_closed and self._budget.take(self._num_bytes):
                self._has_begun, self._num_taken_bytes = True, self._num_bytes
            return self._has_begun and not self._is_closed

    def sent(self, frame: KvFrame) -> None:
        """Give back what a frame took, which waits no more."""
        specs = self._layout.layers[frame.layer_begin : frame.layer_begin + frame.num_layers]
        num_elements = frame.num_tokens * sum(spec.num_token_elements for spec in specs)
        self._give_back(num_elements * self._layout.dtype.num_bytes)

    def close(self) -> None:
        """Give back the rest: the stream has ended."""
        with self._lock:
            self._is_closed = True
        self._give_back(self._num_bytes)

    def _give_back(self, num_bytes: int) -> None:
        with self._lock:
            num_bytes = min(num_bytes, self._num_taken_bytes)
            self._num_taken_bytes -= num_bytes
        self._budget.give_back(num_bytes)
