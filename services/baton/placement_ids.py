"""Names of placements. Those of one router ascend, so that nodes see in which order it decided.

Calls overtake each other on their way to a node by some milliseconds. What a prompt is expected to wait is what was
placed before it, so that is what it shall wait for.
"""

from __future__ import annotations

import re
import secrets
import time

_NAME = re.compile(r"([0-9a-f]{16})([0-9a-f]{16})")
"""The router, and the moment in nanoseconds, of a clock of its own."""


class PlacementIds:
    """Names what one router decides, as long as it runs. They tell clients neither its age nor how many there are."""

    def __init__(self) -> None:
        self._router = secrets.token_hex(8)
        self._offset = secrets.randbits(62) - time.monotonic_ns()
        self._last = 0

    def new(self) -> str:
        """Return a name that no other placement has."""
        self._last = max(self._last + 1, self._offset + time.monotonic_ns())
        return f"{self._router}{self._last:016x}"


def seconds_between(first: str, second: str) -> float | None:
    """Return how long after one placement its router made another; None: of two routers, or not its names."""
    one, other = _NAME.fullmatch(first), _NAME.fullmatch(second)
    if one is None or other is None or one[1] != other[1]:
        return None
    return (int(other[2], 16) - int(one[2], 16)) / 1e9
