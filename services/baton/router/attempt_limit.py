"""Bounds the wrong tokens that one address may try."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from baton.errors import OverloadedError

MAX_FAILURES = 5
"""Wrong tokens from one address within the window; further attempts are refused unseen."""
WINDOW_SECONDS = 60.0
"""Time after which a failure is forgotten."""
MAX_ADDRESSES = 1024
"""Addresses remembered; the one that failed longest ago goes first."""


class AttemptLimit:
    """Remembers failures by address.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Let an attempt pass.

        Raises:
            OverloadedError: If too many from the address have failed.
        """
        failures = self._failures.get(address)
        while failures and self._clock() - failures[0] >= WINDOW_SECONDS:
            failures.popleft()
        if failures and len(failures) >= MAX_FAILURES:
            seconds = WINDOW_SECONDS - (self._clock() - failures[0])
            raise OverloadedError(f"too many wrong tokens from {address}; again in {seconds:.0f} s", reason="JOIN_RATE")

    def note_failure(self, address: str) -> None:
        """Remember a wrong token."""
        self._failures.setdefault(address, deque(maxlen=MAX_FAILURES)).append(self._clock())
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
