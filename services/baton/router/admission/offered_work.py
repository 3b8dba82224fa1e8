"""How long a queue is of use where more is asked for than can be done."""

from __future__ import annotations

import math
from collections.abc import Callable

HALF_LIFE_SECONDS = 10.0
"""Time after which work counts half."""
IDLE_SHARE = 0.01
"""Part of its time that a node may stand idle for want of a prompt."""


class OfferedWork:
    """Prompts that were asked for of late, in seconds of their computation, and which of them were admitted.

    A queue is there so that a node has work when nobody comes for a while. The more is refused, the sooner somebody
    comes, and what waits beyond that earns nothing: whatever delays the node makes it late.

    Invariant, kept by `add`: sums are decayed to `_updated_at_seconds`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._updated_at_seconds = clock()
        self._asked_seconds = self._admitted_seconds = self._squares = 0.0

    def add(self, prompt_seconds: float, *, is_admitted: bool) -> None:
        """Take a prompt that was asked for."""
        now = self._clock()
        kept = 0.5 ** (max(0.0, now - self._updated_at_seconds) / HALF_LIFE_SECONDS)
        self._updated_at_seconds = now
        self._asked_seconds = kept * self._asked_seconds + prompt_seconds
        self._squares = kept * self._squares + prompt_seconds**2
        self._admitted_seconds = kept * self._admitted_seconds + prompt_seconds * is_admitted

    def useful_queue_seconds(self) -> float:
        """Return the longest queue that a newcomer may find; endless where nothing is refused.

        With r times as much asked for as is done, a node with room for K prompts is idle (r - 1) / (r^(K+1) - 1) of its
        time. One of the K is the newcomer. What is in front of it is counted in prompts of E[s²] / E[s]: where lengths
        differ, the long ones make up the queue.

        Source: Kleinrock, Queueing Systems I, 1975, section 3.6, M/M/1/K; prompts that take less unlike times than
        exponential ones leave a node idle less.
        """
        if self._admitted_seconds >= self._asked_seconds:
            return math.inf
        ratio = self._asked_seconds / max(self._admitted_seconds, 0.01 * self._asked_seconds)
        room = math.log1p((ratio - 1) / IDLE_SHARE) / math.log(ratio) - 1
        return max(1.0, room - 1) * self._squares / self._asked_seconds
