"""When sessions begin, seconds after the beginning of a run, ascending. The load is open: nobody waits for answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random


def all_at_once(count: int) -> list[float]:
    """Return `count` arrivals at the beginning."""
    return [0.0] * count


def poisson(count: int, per_second: float, random: Random) -> list[float]:
    """Return arrivals of a Poisson process: gaps are exponential with mean 1 / per_second.

    Raises:
        ValueError: If the rate is not positive.
    """
    _require_positive("the arrival rate", per_second)
    return list(accumulate(random.expovariate(per_second) for _ in range(count)))


def replayed(trace_seconds: Sequence[float], speed: float) -> list[float]:
    """Return a trace's arrivals from its first on, `speed` times as fast.

    Raises:
        ValueError: If the speed is not positive.
    """
    _require_positive("the speed of a replay", speed)
    ordered = sorted(trace_seconds)
    return [(seconds - ordered[0]) / speed for seconds in ordered]


def _require_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} is {value}; it is above 0")
