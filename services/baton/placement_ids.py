"""Names of placements. Those of one router ascend, so that nodes see in which order it decided.

Calls overtake each other on their way to a node by some milliseconds. What a prompt is expected to wait is what was
placed before it, so that is what it shall wait for.
"""

from __future__ import annotations

import time
import uuid

_NUM_DIGITS = 16
"""Hexadecimal digits of the router, and of the moment of its decision."""


class PlacementIds:
    """Names what one router decides, as long as it runs."""

    def __init__(self) -> None:
        self._router = uuid.uuid4().hex[:_NUM_DIGITS]
        self._last = 0

    def new(self) -> str:
        """Return a name that no other placement has. It does not tell clients how many there are."""
        self._last = max(self._last + 1, time.monotonic_ns())
        return f"{self._router}{self._last:0{_NUM_DIGITS}x}"


def is_placed_before(first: str, second: str) -> bool:
    """Return whether a router placed one before another; of two routers, or names of other kinds, nobody knows."""
    return first[:_NUM_DIGITS] == second[:_NUM_DIGITS] and first < second
