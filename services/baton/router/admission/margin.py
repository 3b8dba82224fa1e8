"""How much worse than predicted it comes for nearly all: what a prediction is multiplied by before it is relied on."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

MISS_SHARE = 0.15
"""Share of outcomes that may be worse than prediction * factor: a request that is refused is good in no case, and what
stops a node for a moment is not to be foreseen."""
WINDOW_SECONDS, WINDOW_OUTCOMES = 30.0, 128
"""What is older, or has so many after it, teaches no more: a bad moment is over as soon as that."""
PRIOR_OUTCOMES = 20
"""So many are taken to have come as predicted, until there are others in their place: a few are no quantile."""
SMALLEST_FACTOR, LARGEST_FACTOR = 0.5, 4.0
"""Bounds: beyond them the estimate is wrong rather than off."""
LEAST_SHARE = 0.5
"""Part of the objective at which a factor holds as such: what delays all alike says more of a short wait than of those
that decide, so a smaller prediction is off by as much as this one."""


def relative(measured: float, predicted: float, objective: float) -> float:
    """Return what an outcome says of factors: measured / predicted, where the prediction is not small."""
    return 1 + (measured - predicted) / max(predicted, LEAST_SHARE * objective)


def relied_on(predicted: float, factor: float, objective: float) -> float:
    """Return a prediction by a factor of `relative`: what it is to be relied on."""
    return predicted + (factor - 1) * max(predicted, LEAST_SHARE * objective)


class Margin:
    """The (1 - MISS_SHARE) quantile of measured / predicted of late.

    Invariant, kept by `add` and `factor`: `_sorted` holds the ratios of `_recent`, at most WINDOW_OUTCOMES.
    """

    def __init__(self, largest_factor: float = LARGEST_FACTOR) -> None:
        self._largest_factor = largest_factor
        self._recent = deque[tuple[float, float]]()
        self._sorted = list[float]()

    def add(self, ratio: float, now_seconds: float) -> None:
        """Take measured / predicted of one request, above 0."""
        self._recent.append((now_seconds, ratio))
        insort(self._sorted, ratio)
        if len(self._recent) > WINDOW_OUTCOMES:
            self._drop_oldest()

    def factor(self, now_seconds: float) -> float:
        """Return what a prediction is to be multiplied by; 1 without outcomes."""
        while self._recent and self._recent[0][0] <= now_seconds - WINDOW_SECONDS:
            self._drop_oldest()
        num_prior = max(0, PRIOR_OUTCOMES - len(self._sorted))
        ratios = sorted([*self._sorted, *[1.0] * num_prior]) if num_prior else self._sorted
        quantile = ratios[-1 - int(MISS_SHARE * len(ratios))]
        return min(max(quantile, SMALLEST_FACTOR), self._largest_factor)

    def _drop_oldest(self) -> None:
        _, ratio = self._recent.popleft()
        del self._sorted[bisect_left(self._sorted, ratio)]
