"""The margin of predictions."""

from __future__ import annotations

from random import Random

import pytest

from baton.router.admission.margin import HALF_LIFE_SECONDS, LARGEST_FACTOR, SMALLEST_FACTOR, Margin


def test_a_twentieth_of_outcomes_is_above_it() -> None:
    """Of ratios between 1 and 2, those above 1.95."""
    random, margin = Random(1), Margin()
    for _ in range(4000):
        margin.add(random.uniform(1, 2), 0.0)

    assert margin.factor(0.0) == pytest.approx(1.95, rel=0.1)


@pytest.mark.parametrize(("ratio", "bound"), [(100.0, LARGEST_FACTOR), (0.01, SMALLEST_FACTOR)])
def test_it_stays_within_its_bounds(ratio: float, bound: float) -> None:
    """Also of absurd outcomes."""
    margin = Margin()
    for _ in range(1000):
        margin.add(ratio, 0.0)

    assert margin.factor(0.0) == pytest.approx(bound)


def test_it_is_forgotten_without_outcomes() -> None:
    """By half of its logarithm."""
    margin = Margin()
    for _ in range(1000):
        margin.add(100.0, 0.0)

    assert margin.factor(HALF_LIFE_SECONDS) == pytest.approx(LARGEST_FACTOR**0.5)
