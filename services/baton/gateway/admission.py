"""Which requests may be worked on: a bound for all of them together, and limits for each API key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from baton.errors import OverloadedError
from baton.gateway.key_limits import KeyLimits


class Admission:
    """Counts requests of both APIs. Used on the event loop only."""

    def __init__(self, max_concurrent_requests: int, key_limits: KeyLimits) -> None:
        self._max_requests = max_concurrent_requests
        self._key_limits = key_limits
        self.num_requests = 0
        """Requests in work."""

    @contextmanager
    def slot(self, key_name: str) -> Iterator[None]:
        """Hold a place for one request of an API key.

        Raises:
            OverloadedError: If all are taken, or the key has used up its own.
        """
        if self.num_requests >= self._max_requests:
            raise OverloadedError(f"{self._max_requests} requests are in work already; try again soon")
        with self._key_limits.slot(key_name):
            self.num_requests += 1
            try:
                yield
            finally:
                self.num_requests -= 1
