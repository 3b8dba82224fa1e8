"""How many requests may be in work at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from baton.errors import OverloadedError


class Admission:
    """Counts requests of both APIs. Used on the event loop only."""

    def __init__(self, max_concurrent_requests: int) -> None:
        self._max_requests = max_concurrent_requests
        self.num_requests = 0
        """Requests in work."""

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a place for one request.

        Raises:
            OverloadedError: If all are taken.
        """
        if self.num_requests >= self._max_requests:
            raise OverloadedError(f"{self._max_requests} requests are in work already; try again soon")
        self.num_requests += 1
        try:
            yield
        finally:
            self.num_requests -= 1
