"""What keeps a peer from costing work for nothing."""

from __future__ import annotations

import time

from baton.h2.protocol import ErrorCode, ProtocolError


class ControlBudget:
    """Counts frames that cost work and no window: so many a second on average, and as many at once.

    Args:
        num_per_second: How many are taken.
    """

    def __init__(self, num_per_second: float) -> None:
        self._rate = num_per_second
        self._num_left = float(num_per_second)
        self._seen_at = time.monotonic()

    def spend(self) -> None:
        """Count one.

        Raises:
            ProtocolError: If there were too many.
        """
        now = time.monotonic()
        self._num_left = min(self._rate, self._num_left + self._rate * (now - self._seen_at)) - 1
        self._seen_at = now
        if self._num_left < 0:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames")
