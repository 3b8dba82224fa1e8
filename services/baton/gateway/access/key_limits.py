"""How much one API key may ask: requests per minute, and requests at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from baton.errors import OverloadedError

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
