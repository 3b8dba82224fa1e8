"""How long a request may take: its own limit, and the end of the grace when the gateway stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from baton.errors import UnavailableError


class Deadlines:
    """Limits requests of both APIs. Used on the event loop only."""

    def __init__(self, timeout_seconds: float) -> None:
        """Make it.

        Args:
            timeout_seconds: Longest time of a request.
        """
        self._timeout_seconds = timeout_seconds
        self._running: set[asyncio.Timeout] = set()
        self._is_cut = False

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Run one request.

        Raises:
            TimeoutError: If it takes too long.
            UnavailableError: If the gateway stops before it has ended.
        """
        timeout = asyncio.timeout(0 if self._is_cut else self._timeout_seconds)
        try:
            async with timeout:
                self._running.add(timeout)
                yield
        except TimeoutError:
            if self._is_cut and timeout.expired():
                raise UnavailableError("the gateway is shutting down", reason="DRAINING") from None
            raise
        finally:
            self._running.discard(timeout)

    def cut(self) -> None:
        """End all requests: each is told why."""
        self._is_cut = True
        now_seconds = asyncio.get_running_loop().time()
        for timeout in self._running:
            if not timeout.expired():
                timeout.reschedule(now_seconds)
