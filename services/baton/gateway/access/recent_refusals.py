"""What the router has just refused, so that a flood of the same costs neither tokenizing nor a call."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from baton.errors import OverloadedError
from baton.gateway.access.key_limits import RETRY_AFTER_SECONDS

WAIT_SECONDS = "wait_seconds"
"""Key of a refusal's metadata: the same, not rounded."""
SHARE_OF_WAIT = 0.5
"""A refusal holds for so much of the time after which its request would be placed: the next one asks the router."""
LONGEST_SECONDS = 0.1
"""Nor longer than that: a refusal says what is, and the nodes it is about must never stand idle because of it."""
MAX_KEYS = 1024
"""API keys remembered; the oldest refusal goes first."""

_REASONS = ("OVERLOADED", "FAIR_SHARE")


class _Refusal(NamedTuple):
    error: OverloadedError
    num_bytes: int
    """Size of the request; larger ones would fare no better."""
    ends_at_seconds: float
    """When a request of its size would be placed."""
    forgotten_at_seconds: float


class RecentRefusals:
    """The last refusal of each API key. Used on the event loop only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refusals: OrderedDict[str, _Refusal] = OrderedDict()

    @contextmanager
    def watch(self, key_name: str, num_bytes: int, *, has_objectives: bool) -> Iterator[None]:
        """Answer a request.

        Args:
            key_name: Of whoever asks.
            num_bytes: Of its body.
            has_objectives: Whether it has objectives of its own: what was refused others says nothing of it.

        Raises:
            OverloadedError: At once, if the router has just refused a request of the key that was no larger.
        """
        if not has_objectives:
            self._check(key_name, num_bytes)
        try:
            yield
        except OverloadedError as error:
            if error.reason in _REASONS and not has_objectives:
                self._note(key_name, num_bytes, error)
            raise

    def _check(self, key_name: str, num_bytes: int) -> None:
        refusal = self._refusals.get(key_name)
        if refusal is None or num_bytes < refusal.num_bytes:
            return
        now = self._clock()
        if now >= refusal.forgotten_at_seconds:
            del self._refusals[key_name]
            return
        whole_seconds = max(1, math.ceil(refusal.ends_at_seconds - now))
        metadata = {RETRY_AFTER_SECONDS: str(whole_seconds)}
        raise OverloadedError(refusal.error.message, reason=refusal.error.reason, metadata=metadata)

    def _note(self, key_name: str, num_bytes: int, error: OverloadedError) -> None:
        if WAIT_SECONDS not in error.metadata:
            return  # one of these
        now, wait_seconds = self._clock(), float(error.metadata[WAIT_SECONDS])
        forgotten_at = now + min(LONGEST_SECONDS, SHARE_OF_WAIT * wait_seconds)
        self._refusals.pop(key_name, None)
        self._refusals[key_name] = _Refusal(error, num_bytes, now + wait_seconds, forgotten_at)
        if len(self._refusals) > MAX_KEYS:
            self._refusals.popitem(last=False)
