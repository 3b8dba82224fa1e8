"""The power that a machine drew over the last minutes, and the energy that follows from it."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import pairwise
from typing import NamedTuple

MAX_SAMPLES = 900
"""A quarter of an hour at one sample per second."""
MAX_GAP_SECONDS = 3.0
"""Samples further apart than this, or a window's end further from the next sample, leave the energy unknown."""


class PowerSample(NamedTuple):
    """Power at one time."""

    seconds: float
    """By a monotonic clock."""
    watts: float
    """Drawn."""


class PowerLog:
    """Keeps the last samples, in the order of their times."""

    def __init__(self) -> None:
        self._samples: deque[PowerSample] = deque(maxlen=MAX_SAMPLES)

    def add(self, seconds: float, watts: float) -> None:
        """Keep a sample, later than all before."""
        self._samples.append(PowerSample(seconds, watts))

    def energy_joules(self, begin_seconds: float, end_seconds: float) -> float | None:
        """Return the energy of a window by the trapezoid rule; None where samples do not cover it. O(samples).

        Power at the window's ends is interpolated; past the first and the last sample it is taken as theirs.
        """
        samples = list(self._samples)
        if not samples or not self._covers(samples, begin_seconds, end_seconds):
            return None
        points = [
            PowerSample(begin_seconds, _watts_at(samples, begin_seconds)),
            *(sample for sample in samples if begin_seconds < sample.seconds < end_seconds),
            PowerSample(end_seconds, _watts_at(samples, end_seconds)),
        ]
        return sum((old.watts + new.watts) / 2 * (new.seconds - old.seconds) for old, new in pairwise(points))

    @staticmethod
    def _covers(samples: list[PowerSample], begin_seconds: float, end_seconds: float) -> bool:
        """Return whether no moment of the window is far from the samples around it."""
        if begin_seconds < samples[0].seconds - MAX_GAP_SECONDS or end_seconds > samples[-1].seconds + MAX_GAP_SECONDS:
            return False
        return not any(
            new.seconds - old.seconds > MAX_GAP_SECONDS
            for old, new in pairwise(samples)
            if new.seconds > begin_seconds and old.seconds < end_seconds
        )


def _watts_at(samples: list[PowerSample], seconds: float) -> float:
    index = bisect_left(samples, seconds, key=lambda sample: sample.seconds)
    if index == 0:
        return samples[0].watts
    if index == len(samples):
        return samples[-1].watts
    old, new = samples[index - 1], samples[index]
    return old.watts + (new.watts - old.watts) * (seconds - old.seconds) / (new.seconds - old.seconds)
