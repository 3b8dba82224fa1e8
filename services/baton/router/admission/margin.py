"""How much worse than predicted it comes for nearly all: what a prediction is multiplied by before it is relied on."""

from __future__ import annotations

import math

MISS_SHARE = 0.05
"""Share of outcomes that may be worse than prediction * factor."""
STEP = 0.1
"""How far an outcome that was worse moves the logarithm; one that was not moves it back by MISS_SHARE of it."""
SMALLEST_FACTOR, LARGEST_FACTOR = 0.5, 4.0
"""Bounds: beyond them the estimate is wrong rather than off."""
HALF_LIFE_SECONDS = 60.0
"""Time without outcomes after which half of what was learnt is forgotten: else a bad minute would shed for ever."""


class Margin:
    """The (1 - MISS_SHARE) quantile of measured / predicted, followed as it changes.

    Invariant, kept by `add`: within [SMALLEST_FACTOR, `largest_factor`]. Where a share MISS_SHARE of outcomes is above
    the factor, its steps up and down cancel out.

    Source: Robbins and Monro, A Stochastic Approximation Method, 1951; the quantile's form.
    """

    def __init__(self, largest_factor: float = LARGEST_FACTOR) -> None:
        self._largest_factor = largest_factor
        self._log_factor = 0.0
        self._updated_at_seconds = 0.0

    def add(self, ratio: float, now_seconds: float) -> None:
        """Take measured / predicted of one request, above 0."""
        log_factor = math.log(self.factor(now_seconds))
        is_worse = math.log(ratio) > log_factor
        log_factor += STEP * (1 - MISS_SHARE) if is_worse else -STEP * MISS_SHARE
        self._log_factor = min(max(log_factor, math.log(SMALLEST_FACTOR)), math.log(self._largest_factor))
        self._updated_at_seconds = now_seconds

    def factor(self, now_seconds: float) -> float:
        """Return what a prediction is to be multiplied by; 1 without outcomes."""
        age_seconds = max(0.0, now_seconds - self._updated_at_seconds)
        return math.exp(self._log_factor * 0.5 ** (age_seconds / HALF_LIFE_SECONDS))
