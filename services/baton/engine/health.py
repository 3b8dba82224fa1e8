"""Judges passes: whether the device still computes."""

from __future__ import annotations

from collections.abc import Sequence

from baton.errors import NonFiniteLogitsError

MAX_FAILED_PASSES = 16
"""Passes in a row that may give nothing. A node whose passes all fail looks idle and quick, and would draw all
requests."""


class PassHealth:
    """Counts passes in a row that gave nothing: they raised, or no row of their logits was finite."""

    def __init__(self) -> None:
        self._num_failed = 0

    def note(self, outcomes: Sequence[object] | None) -> None:
        """Enter a pass.

        Args:
            outcomes: What its rows of logits gave; empty if it had none, which proves nothing; None if it raised.

        Raises:
            RuntimeError: If too many have failed.
        """
        if outcomes is None or (outcomes and all(isinstance(each, NonFiniteLogitsError) for each in outcomes)):
            self._num_failed += 1
        elif outcomes:
            self._num_failed = 0
        if self._num_failed == MAX_FAILED_PASSES:
            raise RuntimeError(f"{MAX_FAILED_PASSES} passes failed in a row: the device is taken for lost")
