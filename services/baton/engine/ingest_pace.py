"""How much arriving KV is written between two passes, so that those who generate keep their pace."""

from __future__ import annotations

import math

from baton.engine.pace import Pace, PassWork

_MAX_DEBT_GAPS = 4.0
"""Time overdrawn is paid back by at most this many gaps: a pause of the machine holds nobody up for long."""


class IngestPace:
    """Gives each gap between two passes a share of a pass's time, and tells what can be written in it.

    Writing is timed as it happens. A gap that took longer shortens the ones after it; one that was not used up
    lengthens none, since each is felt by itself.

    Args:
        share: Part of a pass's time for which may be written after it; 0: any.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._cost = Pace()
        self._passes = (0.0, 0.0)  # the last two
        self._left_seconds = math.inf

    def begin(self, pass_seconds: float | None) -> None:
        """Begin a gap.

        Args:
            pass_seconds: What the last pass took; None: nobody generates, and nothing is held back.
        """
        if pass_seconds is None or not self._share:
            self._left_seconds = math.inf
            return
        self._passes = (self._passes[1], pass_seconds)
        gap_seconds = self._share * min(self._passes)  # one long pass is no reason for a long gap
        debt_seconds = min(0.0, self._left_seconds)
        self._left_seconds = gap_seconds + max(debt_seconds, -_MAX_DEBT_GAPS * gap_seconds)

    def note_write(self, num_bytes: int, seconds: float) -> None:
        """Take in what it took to write a piece."""
        self._cost.note(PassWork(num_bytes, 0), seconds, has_prompts=False)
        self._left_seconds -= seconds

    def affordable_bytes(self) -> float:
        """Return the size of the largest piece that fits into what is left of the gap; 0 where none does."""
        if math.isinf(self._left_seconds):
            return math.inf
        cost = self._cost.cost
        if cost is None or self._left_seconds <= cost.fixed_seconds:
            return 0.0
        if not cost.token_seconds:
            return math.inf
        return (self._left_seconds - cost.fixed_seconds) / cost.token_seconds
