"""How much one API key may ask: requests per minute, and requests at once.

Which requests may be worked on: a bound for all of them together, and limits for each API key.

How long a request may take: its own limit, and the end of the grace when the gateway stops.

What every request of either API passes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from baton.errors import OverloadedError, UnavailableError
from baton.gateway.access.api_keys import ApiKeys
from baton.gateway.access.request_context import AccessLog

RETRY_AFTER_SECONDS = "retry_after_seconds"
"""Key of an error's metadata: whole seconds after which asking again makes sense."""


@dataclass(slots=True)
class _Account:
    """What a key has used."""

    allowance_requests: float
    """Requests that it may make at once; grows with time up to the requests of a minute."""
    updated_seconds: float
    """When the allowance was computed."""
    num_requests: int = 0
    """Requests in work."""


class KeyLimits:
    """Keeps an account per key name: a token bucket that holds a minute's requests, and a count of those in work.

    Used on the event loop only. The names come from the file of keys, which bounds their number; without keys all
    clients share the account of the empty name.
    """

    def __init__(self, *, requests_per_minute: int, max_concurrent_requests: int, clock: Callable[[], float]) -> None:
        """Make limits without accounts.

        Args:
            requests_per_minute: 0: no limit.
            max_concurrent_requests: 0: no limit.
            clock: Returns seconds, never falling.
        """
        self._requests_per_minute = requests_per_minute
        self._max_requests = max_concurrent_requests
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    @contextmanager
    def slot(self, key_name: str) -> Iterator[None]:
        """Hold a place for one request of a key.

        Raises:
            OverloadedError: If it has too many in work, or has made too many; its metadata say when to come back.
        """
        account = self._accounts.setdefault(key_name, _Account(self._requests_per_minute, self._clock()))
        self._check_concurrency(account)
        self._take(account)
        account.num_requests += 1
        try:
            yield
        finally:
            account.num_requests -= 1

    def _check_concurrency(self, account: _Account) -> None:
        if 0 < self._max_requests <= account.num_requests:
            text = f"{self._max_requests} requests of this API key are in work already; try again soon"
            raise OverloadedError(text, reason="KEY_CONCURRENCY", metadata={RETRY_AFTER_SECONDS: "1"})

    def _take(self, account: _Account) -> None:
        if self._requests_per_minute == 0:
            return
        per_second, now_seconds = self._requests_per_minute / 60, self._clock()
        grown = account.allowance_requests + (now_seconds - account.updated_seconds) * per_second
        account.allowance_requests = min(grown, self._requests_per_minute)
        account.updated_seconds = now_seconds
        if account.allowance_requests < 1:
            wait_seconds = math.ceil((1 - account.allowance_requests) / per_second)
            text = f"this API key may make {self._requests_per_minute} requests per minute; wait {wait_seconds} s"
            raise OverloadedError(text, reason="KEY_RATE", metadata={RETRY_AFTER_SECONDS: str(wait_seconds)})
        account.allowance_requests -= 1


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


class AccessControl(NamedTuple):
    """Who may ask, how much at once, and the record of it."""

    keys: ApiKeys
    """Names the caller."""
    admission: Admission
    """Bounds the requests in work."""
    traffic: AccessLog
    """Tells logs and metrics."""
