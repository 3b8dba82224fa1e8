"""When sessions begin, seconds after the beginning of a run, ascending. The load is open: nobody waits for answers."""

from __future__ import annotations

import math
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


def gamma(count: int, per_second: float, shape: float, random: Random) -> list[float]:
    """Return arrivals whose gaps have a gamma distribution of mean 1 / per_second.

    Args:
        count: Number of arrivals.
        per_second: Mean rate.
        shape: 1 is a Poisson process, below 1 comes in bursts, above 1 is more even; the gaps' coefficient of variation
            is shape ** -0.5.
        random: Draws the gaps.

    Raises:
        ValueError: If rate or shape is not positive.
    """
    _require_positive("the arrival rate", per_second)
    _require_positive("the gamma shape", shape)
    return list(accumulate(random.gammavariate(shape, 1 / (per_second * shape)) for _ in range(count)))


def ramp(count: int, first_per_second: float, last_per_second: float, random: Random) -> list[float]:
    """Return arrivals of a Poisson process whose rate goes linearly from the first to the last.

    The ramp lasts 2 * count / (first + last) seconds, in which `count` arrivals are expected; arrivals that come after
    it come at the last rate. Source: time change of a unit-rate process by the inverse of the cumulative rate.

    Raises:
        ValueError: If the first rate is negative or the last is not positive.
    """
    _require_positive("the last arrival rate", last_per_second)
    if first_per_second < 0:
        raise ValueError(f"the first arrival rate is {first_per_second} per second; it is 0 or more")
    ramp_seconds = 2 * count / (first_per_second + last_per_second)
    unit_times = accumulate(random.expovariate(1.0) for _ in range(count))
    return [_ramp_time(unit, first_per_second, last_per_second, ramp_seconds, count) for unit in unit_times]


def replayed(trace_seconds: Sequence[float], speed: float) -> list[float]:
    """Return a trace's arrivals from its first on, `speed` times as fast.

    Raises:
        ValueError: If the speed is not positive.
    """
    _require_positive("the speed of a replay", speed)
    ordered = sorted(trace_seconds)
    return [(seconds - ordered[0]) / speed for seconds in ordered]


def _ramp_time(unit: float, first: float, last: float, ramp_seconds: float, count: int) -> float:
    if unit >= count:
        return ramp_seconds + (unit - count) / last
    slope = (last - first) / ramp_seconds
    # Solves first * t + slope * t² / 2 = unit in the form that is exact for a slope of 0.
    return 2 * unit / (first + math.sqrt(first * first + 2 * slope * unit))


def _require_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} is {value}; it is above 0")
