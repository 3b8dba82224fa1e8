"""Proves, whenever an engine comes to rest, that no block is lost or doubled."""

from __future__ import annotations

from collections.abc import Callable

from baton.engine.scheduler import Scheduler

CHECK_INTERVAL_SECONDS = 1.0
"""Shortest time between two proofs, each O(blocks)."""


class IntegrityWatch:
    """Remembers whether the scheduler's state is proven.

    Args:
        scheduler: What is proven.
        clock: Seconds, monotonic.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._is_proven = True
        self._checked_at = 0.0

    def note_change(self) -> None:
        """Take the state for unproven."""
        self._is_proven = False

    def seconds_until_check(self) -> float | None:
        """Prove the state if it is time, before the engine waits.

        Returns:
            Seconds after which to ask again; None: nothing is left to prove.

        Raises:
            AssertionError: If a block is lost or doubled.
        """
        if self._is_proven:
            return None
        remaining = self._checked_at + CHECK_INTERVAL_SECONDS - self._clock()
        if remaining > 0:
            return remaining
        self._scheduler.check_integrity()
        self._checked_at, self._is_proven = self._clock(), True
        return None
