"""How long KV is moved between two passes: never longer than those who wait for it gain by what all others lose.

What is moved in a gap delays every sequence that runs; what is not moved delays those that wait for it by a pass. And
what arrives is moved as fast as it arrives, or ever more would wait.
"""

from __future__ import annotations

import math

from baton.engine.step_cost import StepCostModel, StepWork

MAX_DUE_PASSES = 9.0
"""Passes of time that keeping up takes in a gap at most: a tenth of the time is for passes, whatever arrives."""
_MAX_DEBT_GAPS = 4.0
"""Time overdrawn is paid back by at most this many gaps: nobody waits longer than that after a pause."""
_RATE_DECAY = 0.98
"""Weight of a piece after another in the rate of writing."""


def gap_seconds(pass_seconds: float, *, num_running: int, num_waiting: int, due_seconds: float) -> float:
    """Return for how long KV is moved between two passes.

    Interval table of the gap: [0, due) keeps up with what has arrived; what follows gains on what waits, and ends where
    the sequences that run lose, num_running · seconds, what those that wait gain, num_waiting · a pass.

    Args:
        pass_seconds: What a pass takes.
        num_running: Sequences that the gap delays; 0: nobody, and nothing is held back.
        num_waiting: Sequences that wait for KV to be moved.
        due_seconds: What it takes to move what has arrived since the gap before. Of more than `MAX_DUE_PASSES` passes
            the rest waits: more arrives than can be moved.
    """
    if not num_running:
        return math.inf
    return min(due_seconds, MAX_DUE_PASSES * pass_seconds) + pass_seconds * num_waiting / num_running


class GapBudget:
    """Gives each gap between two passes its time, and tells what can be moved in what is left of it.

    Moving is timed as it happens. A gap that took longer shortens the ones after it; one that was not used up lengthens
    none, since each is felt by itself.
    """

    def __init__(self) -> None:
        self._cost = StepCostModel()
        self._passes = (math.inf, math.inf)  # the last two
        self._num_due_bytes = 0
        self._left_seconds = math.inf

    def note_arrival(self, num_bytes: int) -> None:
        """Take in that so many bytes are to be moved, besides what waits already."""
        self._num_due_bytes += num_bytes

    def begin(self, pass_seconds: float, *, num_running: int, num_waiting: int) -> None:
        """Begin a gap.

        Args:
            pass_seconds: What the last pass took.
            num_running: Sequences that the gap delays; 0: nothing is held back.
            num_waiting: Sequences that wait for KV to be moved.
        """
        due_seconds, self._num_due_bytes = self._seconds(self._num_due_bytes), 0
        self._passes = (self._passes[1], pass_seconds)
        seconds = gap_seconds(
            min(self._passes),  # one long pass is no reason for a long gap
            num_running=num_running,
            num_waiting=num_waiting,
            due_seconds=due_seconds,
        )
        debt_seconds = min(0.0, self._left_seconds)
        self._left_seconds = seconds + (max(debt_seconds, -_MAX_DEBT_GAPS * seconds) if debt_seconds else 0.0)

    def begin_free(self, seconds: float) -> None:
        """Begin a time in which the device computes and the host has nothing to do: nobody is delayed."""
        self._left_seconds = seconds

    def note_write(self, num_bytes: int, seconds: float) -> None:
        """Take in what it took to move a piece."""
        self._cost.note(StepWork(num_bytes, 0), seconds, has_prompts=False)
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

    def _seconds(self, num_bytes: int) -> float:
        cost = self._cost.cost
        return cost.seconds(StepWork(num_bytes, 0)) if cost is not None and num_bytes else 0.0


class MoveRate:
    """Rate of moving KV into or out of blocks, of the last pieces: sums in which old ones fade.

    Attributes:
        bytes_per_second: The rate; 0: nothing has been moved, or it took no time.
    """

    def __init__(self) -> None:
        self.bytes_per_second = 0.0
        self._num_bytes = self._seconds = 0.0

    def note(self, num_bytes: int, seconds: float) -> None:
        """Take in what it took to move a piece."""
        self._num_bytes = _RATE_DECAY * self._num_bytes + num_bytes
        self._seconds = _RATE_DECAY * self._seconds + seconds
        self.bytes_per_second = self._num_bytes / self._seconds if self._seconds > 0.0 else 0.0
