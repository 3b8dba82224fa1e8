"""Arrivals: ascending, seeded, and of the statistics that they claim."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import fmean, stdev

import pytest

from bench.workloads import traces


def gaps(times: Sequence[float]) -> list[float]:
    """Return the time before each arrival."""
    return [after - before for before, after in pairwise([0.0, *times])]


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    """Mean 1 / rate, coefficient of variation 1."""
    times = gaps(traces.poisson(20_000, 4.0, Random(1)))

    assert fmean(times) == pytest.approx(0.25, rel=0.03)
    assert stdev(times) / fmean(times) == pytest.approx(1.0, rel=0.03)


def test_a_replay_begins_at_its_first_request_and_is_sped_up() -> None:
    """Only distances matter."""
    assert traces.replayed([10.0, 12.0, 16.0], 2.0) == [0.0, 1.0, 3.0]


def test_arrivals_ascend_and_follow_from_the_seed() -> None:
    """A run can be repeated."""
    times = traces.poisson(100, 3.0, Random(7))

    assert times == sorted(times)
    assert times == traces.poisson(100, 3.0, Random(7))


def test_a_rate_that_is_not_positive_is_refused() -> None:
    """It would never send."""
    with pytest.raises(ValueError, match="arrival rate is 0"):
        traces.poisson(1, 0.0, Random(1))
