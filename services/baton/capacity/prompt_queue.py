"""Prompts that one node has still to compute, and how long a further one waits among them. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class PromptQueue:
    """What is left of each prompt of a node, in seconds of its computation.

    Invariant, kept by `of`: `seconds` ascends, and `sums[i]` is the sum of the first i.
    """

    seconds: tuple[float, ...] = ()
    """Of each prompt, shortest first."""
    sums: tuple[float, ...] = (0.0,)
    """Sums of the shortest."""
    pass_seconds: float = 0.0
    """Time of a full pass; 0: prompts are dealt out in pieces of any size."""

    @classmethod
    def of(cls, seconds: Iterable[float], pass_seconds: float = 0.0) -> PromptQueue:
        """Return the queue of prompts that need so many seconds each; those that need none are left out."""
        ascending = tuple(sorted(each for each in seconds if each > 0))
        if not ascending:
            return EMPTY_QUEUE
        return cls(ascending, tuple(accumulate(ascending, initial=0.0)), pass_seconds)

    @property
    def total_seconds(self) -> float:
        """Return what all prompts need together."""
        return self.sums[-1]

    def wait_seconds(self, own_seconds: float) -> float:
        """Return how long a prompt that comes last waits while others are computed. O(log prompts).

        A pass goes half to whose turn it is and half to who has least left (`share_tokens` of the engine). So a prompt
        is through when all are; or, by the second half alone, when it and those that are no longer are, at half speed:
        in whole passes, after the rest of the one that runs, half of one on average.
        """
        if not self.seconds:
            return 0.0
        by_size = 2 * (self.sums[bisect_right(self.seconds, own_seconds)] + own_seconds)
        if self.pass_seconds:
            by_size = (math.ceil(by_size / self.pass_seconds) + 0.5) * self.pass_seconds
        return min(self.sums[-1], by_size - own_seconds)


EMPTY_QUEUE = PromptQueue()
"""Nothing to compute."""


class PlacedPrompt(NamedTuple):
    """A prompt that no report has named yet."""

    seconds: float
    """What it needs."""
    age_seconds: float
    """Time since it was placed."""


def aged_queue(
    listed: Sequence[float], listed_age_seconds: float, placed: Iterable[PlacedPrompt], pass_seconds: float = 0.0
) -> PromptQueue:
    """Return what is left now of a queue that was reported some time ago.

    The node is taken to have computed all the while: what it listed, as it deals passes out, then what was placed
    since, each from its own coming on.

    Args:
        listed: Seconds of what it listed, in order of turns.
        listed_age_seconds: Time since then, 0 or more.
        placed: What has been placed and not been listed, oldest first.
        pass_seconds: Time of a full pass.
    """
    left = list(listed)
    idle = _deal(left, range(len(left)), listed_age_seconds / 2)
    idle = _deal(left, sorted(range(len(left)), key=left.__getitem__), idle + listed_age_seconds / 2)
    for prompt in placed:
        idle = min(idle, prompt.age_seconds)  # what it was idle before is lost
        done = min(prompt.seconds, idle)
        idle -= done
        left.append(prompt.seconds - done)
    return PromptQueue.of(left, pass_seconds)


class QueuedWork(NamedTuple):
    """What a node has to compute, as far as it has said and as has been placed there since."""

    listed: Sequence[float] = ()
    """Seconds of each prompt that it reported, in order of turns."""
    reported_at_seconds: float = 0.0
    """When."""
    placed: Sequence[tuple[float, float]] = ()
    """Of each prompt placed since, oldest first: its seconds, and when it was placed."""
    pass_seconds: float = 0.0
    """Time of a full pass; 0: not known."""

    def at(self, now_seconds: float, pace: float = 1.0) -> PromptQueue:
        """Return what is left at a moment.

        Args:
            now_seconds: The moment.
            pace: Part of its device's time that it has for prompts, above 0 to 1.
        """
        if not (self.listed or self.placed):
            return EMPTY_QUEUE
        placed = [PlacedPrompt(seconds, (now_seconds - placed_at) * pace) for seconds, placed_at in self.placed]
        return aged_queue(self.listed, (now_seconds - self.reported_at_seconds) * pace, placed, self.pass_seconds)


NO_WORK = QueuedWork()
"""Nothing to compute."""


def _deal(left: list[float], order: Iterable[int], seconds: float) -> float:
    """Take what each needs, in this order; return what remains."""
    for index in order:
        if seconds < left[index]:
            left[index] -= seconds
            return 0.0
        seconds -= left[index]
        left[index] = 0.0
    return seconds
