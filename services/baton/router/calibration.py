"""How far predictions are off, per node and link, learnt from what happened."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)

WEIGHT = 0.2
"""Weight of one outcome in the moving average."""
MAX_FACTOR_PER_OUTCOME = 1.25
"""Furthest that one outcome moves a factor."""
MAX_FACTOR = 16.0
"""Bound of a factor: beyond it, the profile is wrong rather than off."""
HALF_LIFE_SECONDS = 120.0
"""Time without outcomes after which half of a correction is forgotten: a node that looked slow is tried again."""


class RatioAverage:
    """Moving geometric mean of measured / estimated. Invariant, kept by `add`: within [1/MAX_FACTOR, MAX_FACTOR]."""

    def __init__(self) -> None:
        self._log_factor = 0.0
        self._updated_at_seconds = 0.0
        self.num_outcomes = 0

    def add(self, ratio: float, now_seconds: float) -> None:
        """Take one outcome: measured / estimated, both without correction; above 0."""
        current = math.log(self.factor(now_seconds))
        bound = math.log(MAX_FACTOR_PER_OUTCOME)
        move = max(-bound, min(bound, WEIGHT * (math.log(ratio) - current)))
        self._log_factor = max(-math.log(MAX_FACTOR), min(math.log(MAX_FACTOR), current + move))
        self._updated_at_seconds = now_seconds
        self.num_outcomes += 1

    def factor(self, now_seconds: float) -> float:
        """Return what estimates are to be multiplied by; 1 without outcomes."""
        age = max(0.0, now_seconds - self._updated_at_seconds)
        return math.exp(self._log_factor * 0.5 ** (age / HALF_LIFE_SECONDS))


class Calibration(Generic[KeyT]):
    """Factors by key (a node, or a pair of nodes)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._averages: dict[KeyT, RatioAverage] = {}

    def add(self, key: KeyT, measured_seconds: float, estimated_seconds: float) -> None:
        """Take one outcome; one without a duration on either side says nothing and is left out."""
        if measured_seconds > 0 and estimated_seconds > 0:
            ratio = measured_seconds / estimated_seconds
            self._averages.setdefault(key, RatioAverage()).add(ratio, self._clock())

    def factor(self, key: KeyT) -> float:
        """Return what estimates for `key` are to be multiplied by; 1 without outcomes."""
        average = self._averages.get(key)
        return average.factor(self._clock()) if average else 1.0

    def reported(self, key: KeyT) -> float:
        """Return the factor as `NodeState` reports it: 0 without outcomes."""
        return self.factor(key) if key in self._averages else 0.0

    def forget(self, matches: Callable[[KeyT], bool]) -> None:
        """Drop the keys that match: a process that has started again measured itself again."""
        self._averages = {key: average for key, average in self._averages.items() if not matches(key)}


class OutputLengths:
    """Moving mean of the output length, in tokens, per model."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def add(self, model_id: str, num_tokens: int) -> None:
        """Take one finished request."""
        mean = self._means.get(model_id, float(num_tokens))
        self._means[model_id] = mean + WEIGHT * (num_tokens - mean)

    def mean(self, model_id: str) -> float | None:
        """Return the mean of a model; None before the first request has finished."""
        return self._means.get(model_id)
