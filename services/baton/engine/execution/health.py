"""Judges passes: whether the device still computes, and comes to an end.

Passes that give nothing are only a suspicion: a request may be what makes them fail, and whoever sends it could end
one node after the other. The verdict is that of a pass of the engine's own, in which no request has a part.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from baton.engine.runners.base import NOT_FINITE, Runner, Span
from baton.engine.scheduling.step import Step
from baton.errors import NonFiniteLogitsError
from baton.kv.pool import BlockPool

log = logging.getLogger(__name__)

MAX_FAILED_PASSES = 16
"""Passes in a row that may give nothing before the device is examined. A node whose passes all fail looks idle and
quick, and would draw all requests."""

_EXAMINED_TOKEN_ID = 0


LEAST_HUNG_SECONDS = 2.0
"""No pass is taken for hung before: machines pause for other reasons."""


class PassTimer:
    """Times the pass that is computed. The engine's thread begins and ends it, any thread may ask.

    `longest_seconds` returns the time after which a pass is taken for hung; asked while the engine's thread waits.
    """

    def __init__(self, longest_seconds: Callable[[Step], float], clock: Callable[[], float]) -> None:
        self._longest_seconds, self._clock = longest_seconds, clock
        self._timed: tuple[Step, float] | None = None

    def begin(self, step: Step, began: float) -> None:
        """Time a pass that the device could begin at a moment of the clock."""
        self._timed = step, began

    def end(self) -> None:
        """Take note that it is over, or has failed."""
        self._timed = None

    def is_hung(self) -> bool:
        """Return whether the pass takes longer than any that ends."""
        if (timed := self._timed) is None:
            return False
        step, began = timed
        seconds = self._clock() - began
        return seconds > LEAST_HUNG_SECONDS and seconds > self._longest_seconds(step) and self._timed is timed


class PassHealth:
    """Counts passes in a row that gave nothing: they raised, or no row of their logits was finite.

    Attributes:
        num_failed: Passes in a row that gave nothing.
    """

    def __init__(self, runner: Runner, pool: BlockPool) -> None:
        self._runner, self._pool = runner, pool
        self.num_failed = 0

    def note(self, outcomes: Sequence[object] | None) -> None:
        """Enter a pass; after too many that gave nothing, examine the device.

        `outcomes` is what its rows of logits gave; empty proves nothing, None: it raised. Raises RuntimeError if the
        device does not compute.
        """
        if outcomes is None or (outcomes and all(isinstance(each, NonFiniteLogitsError) for each in outcomes)):
            self.num_failed += 1
        elif outcomes:
            self.num_failed = 0
        if self.num_failed >= MAX_FAILED_PASSES and self._pool.num_available:
            self._examine()
            self.num_failed = 0

    def _examine(self) -> None:
        """Compute one token in a block that nobody holds; raise RuntimeError if that fails too, or is no number."""
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
        log.warning("device_examined verdict=sound num_failed_passes=%d", self.num_failed)
