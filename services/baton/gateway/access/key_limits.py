"""How much one API key may ask in a minute: generations, and tokens."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from baton.errors import OverloadedError

RETRY_AFTER_SECONDS = "retry_after_seconds"
"""Key of an error's metadata: whole seconds after which asking again makes sense."""


@dataclass(slots=True)
class _Bucket:
    """Holds a minute's worth, and fills with time. One request may overdraw it: then nothing is given until it is paid.

    Without a limit, `per_minute` 0, it is never empty.
    """

    per_minute: int
    left: float
    updated_seconds: float

    def wait_seconds(self, now_seconds: float) -> float:
        """Return the time until something is left; 0: there is."""
        if not self.per_minute:
            return 0.0
        per_second = self.per_minute / 60
        self.left = min(self.left + (now_seconds - self.updated_seconds) * per_second, self.per_minute)
        self.updated_seconds = now_seconds
        return max(0.0, (1 - self.left) / per_second)


class KeyLimits:
    """Keeps two token buckets per key name.

    Used on the event loop only. The names come from the file of keys, which bounds their number; without keys all
    clients share those of the empty name.
    """

    def __init__(self, *, requests_per_minute: int, tokens_per_minute: int, clock: Callable[[], float]) -> None:
        """Make full ones. 0 is no limit."""
        self._per_minute = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def check(self, key_name: str, num_requests: int = 1) -> None:
        """Raise OverloadedError if a key has used up what it has; of requests only if there are any to come."""
        for kind, per_minute in self._per_minute.items():
            if kind == "requests" and not num_requests:
                continue
            wait_seconds = math.ceil(self._bucket(key_name, kind).wait_seconds(self._clock()))
            if wait_seconds:
                text = f"this API key may use {per_minute} {kind} per minute; wait {wait_seconds} s"
                metadata = {RETRY_AFTER_SECONDS: str(wait_seconds)}
                raise OverloadedError(text, reason="KEY_RATE", metadata=metadata)

    def spend(self, key_name: str, *, num_requests: int = 0, num_tokens: int = 0) -> None:
        """Take what a request uses, also where so much is not left."""
        self._bucket(key_name, "requests").left -= num_requests
        self._bucket(key_name, "tokens").left -= num_tokens

    def _bucket(self, key_name: str, kind: str) -> _Bucket:
        full = _Bucket(self._per_minute[kind], self._per_minute[kind], self._clock())
        return self._buckets.setdefault((key_name, kind), full)
