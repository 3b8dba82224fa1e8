"""Waits for what a program does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

ValueT = TypeVar("ValueT")

TIMEOUT_SECONDS = 30.0
_POLL_SECONDS = 0.01


def eventually(look: Callable[[], ValueT | None]) -> ValueT:
    """Return what `look` finds as soon as it finds something."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(_POLL_SECONDS)
    raise AssertionError(f"nothing within {TIMEOUT_SECONDS} s")
