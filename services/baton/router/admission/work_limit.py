"""How much work a decode node may have in flight, learnt from what became of it: for what no estimate sees."""

from __future__ import annotations

import math
from collections.abc import Callable

TOLERATED_SHARE = 0.05
"""Share of requests that may miss their objective."""
WINDOW_OUTCOMES = 20
"""Outcomes after which the limit is thought over; ENOUGH_MISSES are enough for it, too."""
ENOUGH_MISSES = 3
GROWTH = 0.05
"""By how much a limit that was felt is raised at least after a window in which hardly any request missed."""
DEEP_CUT = 0.25
"""What is missing to where requests missed, as a part of the limit: more is the work of a moment in which all did."""
FORGOTTEN_SECONDS = 60.0
"""A limit without outcomes for longer is no more."""


class WorkLimit:
    """The most predicted seconds of work in flight with which objectives are kept.

    There is none until requests miss. A window counts outcomes of requests that were placed in it: those placed before
    the last change say nothing of it. Where a share F of them misses, the limit falls by F / 2; what made them miss may
    have been of a moment, so from a deep cut it comes back by half of what is left to where they did.

    Source: Alizadeh et al., Data Center TCP (DCTCP), SIGCOMM 2010, section 3: the cut in proportion to what was marked;
    Xu, Harfoush and Rhee, Binary Increase Congestion Control, INFOCOM 2004, section III: the way back.
    """

    def __init__(self) -> None:
        self.seconds = float("inf")
        """The limit."""
        self._begun_at_seconds = float("-inf")
        self._counted_at_seconds = float("-inf")
        self._num_kept = self._num_missed = 0
        self._most_seconds = self._missed_at_seconds = 0.0
        self._is_felt = False

    def allows(self, in_flight_seconds: float, own_seconds: float, now_seconds: float) -> bool:
        """Return whether work may be added to what is in flight."""
        if now_seconds - self._counted_at_seconds > FORGOTTEN_SECONDS:
            return True
        return in_flight_seconds + own_seconds <= self.seconds

    def place(self, in_flight_seconds: float, own_seconds: float) -> None:
        """Note how much is in flight with a placement; a limit is felt where another one like it would not fit."""
        self._most_seconds = max(self._most_seconds, in_flight_seconds)
        self._is_felt = self._is_felt or in_flight_seconds + own_seconds > self.seconds

    def count(self, *, is_kept: bool, placed_at_seconds: float, now_seconds: float) -> None:
        """Take what became of a request."""
        if now_seconds - self._counted_at_seconds > FORGOTTEN_SECONDS:
            self.seconds = float("inf")
        self._counted_at_seconds = now_seconds
        if placed_at_seconds <= self._begun_at_seconds:
            return
        self._num_kept += is_kept
        self._num_missed += not is_kept
        if self._num_missed >= ENOUGH_MISSES or self._num_kept + self._num_missed >= WINDOW_OUTCOMES:
            self._think_over(now_seconds)

    def _think_over(self, now_seconds: float) -> None:
        missed_share = self._num_missed / (self._num_kept + self._num_missed)
        if missed_share > TOLERATED_SHARE:
            self._missed_at_seconds = min(self.seconds, self._most_seconds)
            self.seconds = self._missed_at_seconds * (1 - missed_share / 2)
        elif self._is_felt:
            gap_seconds = self._missed_at_seconds - self.seconds
            is_deep = gap_seconds > DEEP_CUT * self.seconds
            self.seconds += gap_seconds / 2 if is_deep else GROWTH * self.seconds
        self._begun_at_seconds = now_seconds
        self._num_kept = self._num_missed = 0
        self._most_seconds = 0.0
        self._is_felt = False


HALF_LIFE_SECONDS = 10.0
"""Time after which work counts half."""
IDLE_SHARE = 0.01
"""Part of its time that a node may stand idle for want of a prompt."""


class OfferedWork:
    """Prompts that were asked for of late, in seconds of their computation, and which of them were admitted.

    A queue is there so that a node has work when nobody comes for a while. The more is refused, the sooner somebody
    comes, and what waits beyond that earns nothing: whatever delays the node makes it late. Invariant, kept by `add`:
    sums are decayed to `_updated_at_seconds`.
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
        differ, the long ones make up the queue. Source: Kleinrock, Queueing Systems I, 1975, section 3.6, M/M/1/K;
        prompts that take less unlike times than exponential ones leave a node idle less.
        """
        if self._admitted_seconds >= self._asked_seconds:
            return math.inf
        ratio = self._asked_seconds / max(self._admitted_seconds, 0.01 * self._asked_seconds)
        room = math.log1p((ratio - 1) / IDLE_SHARE) / math.log(ratio) - 1
        return max(1.0, room - 1) * self._squares / self._asked_seconds
