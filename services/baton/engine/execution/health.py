"""Judges passes: whether the device still computes.

Passes that give nothing are only a suspicion: a request may be what makes them fail, and whoever sends it could end
one node after the other. The verdict is that of a pass of the engine's own, in which no request has a part.

Proves, whenever an engine comes to rest, that no block is lost or doubled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from baton.engine.runners.base import NOT_FINITE, Runner, Span
from baton.engine.scheduling.scheduler import Scheduler
from baton.errors import NonFiniteLogitsError
from baton.kv.pool import BlockPool

log = logging.getLogger(__name__)

MAX_FAILED_PASSES = 16
"""Passes in a row that may give nothing before the device is examined. A node whose passes all fail looks idle and
quick, and would draw all requests."""

_EXAMINED_TOKEN_ID = 0


class PassHealth:
    """Counts passes in a row that gave nothing: they raised, or no row of their logits was finite.

    Args:
        runner: What computes.
        pool: Where a block for the examination comes from.
    """

    def __init__(self, runner: Runner, pool: BlockPool) -> None:
        self._runner = runner
        self._pool = pool
        self._num_failed = 0

    def note(self, outcomes: Sequence[object] | None) -> None:
        """Enter a pass; after too many that gave nothing, examine the device.

        Args:
            outcomes: What its rows of logits gave; empty if it had none, which proves nothing; None if it raised.

        Raises:
            RuntimeError: If the device does not compute.
        """
        if outcomes is None or (outcomes and all(isinstance(each, NonFiniteLogitsError) for each in outcomes)):
            self._num_failed += 1
        elif outcomes:
            self._num_failed = 0
        if self._num_failed >= MAX_FAILED_PASSES and self._pool.num_available:
            self._examine()
            self._num_failed = 0

    def _examine(self) -> None:
        """Compute one token in a block that nobody holds.

        Raises:
            RuntimeError: If that fails too, or its logits are not finite.
        """
        verdict = f"{MAX_FAILED_PASSES} passes failed in a row, and one without requests: the device is taken for lost"
        block_table = self._pool.allocate(1)
        try:
            span = Span([_EXAMINED_TOKEN_ID], 0, block_table, needs_logits=True)
            is_finite = NOT_FINITE not in self._runner.forward([span]).argmax()
        except Exception as error:  # whatever it is, requests would meet it too
            raise RuntimeError(verdict) from error
        finally:
            self._pool.release(block_table)
        if not is_finite:
            raise RuntimeError(verdict)
        log.warning("device_examined verdict=sound num_failed_passes=%d", self._num_failed)


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
