"""The margin of predictions."""

from __future__ import annotations

from random import Random

import pytest

from baton.router.admission.margin import (
    LARGEST_FACTOR,
    LEAST_SHARE,
    MISS_SHARE,
    SMALLEST_FACTOR,
    WINDOW_SECONDS,
    Margin,
    relative,
    relied_on,
)


def test_a_given_share_of_outcomes_is_above_it() -> None:
    """Of ratios between 1 and 2, those above 1.85."""
    random, margin = Random(1), Margin()
    for _ in range(400):
        margin.add(random.uniform(1, 2), 0.0)

    assert margin.factor(0.0) == pytest.approx(2 - MISS_SHARE, rel=0.1)


@pytest.mark.parametrize(("ratio", "bound"), [(100.0, LARGEST_FACTOR), (0.01, SMALLEST_FACTOR)])
def test_it_stays_within_its_bounds(ratio: float, bound: float) -> None:
    """Also of absurd outcomes."""
    margin = Margin()
    for _ in range(200):
        margin.add(ratio, 0.0)

    assert margin.factor(0.0) == pytest.approx(bound)


def test_a_few_outcomes_are_no_quantile() -> None:
    """Of three bad ones none counts, and a fourth does."""
    margin = Margin()
    for ratio in (3.0, 4.0, 2.0):
        margin.add(ratio, 0.0)
    assert margin.factor(0.0) == 1.0

    margin.add(2.5, 0.0)
    assert margin.factor(0.0) == 2.0


def test_a_bad_moment_is_over_when_it_has_left_the_window() -> None:
    """However bad it was."""
    margin = Margin()
    for index in range(60):
        margin.add(100.0 if index < 10 else 1.2, float(index))

    assert margin.factor(WINDOW_SECONDS + 8.5) == 1.2


def test_a_delay_of_all_is_as_long_for_all() -> None:
    """Half a second more than a short prediction is no factor for a long one; a long one's is a factor for both."""
    objective = 2.0
    late_by_half = relative(0.7, 0.2, objective)

    assert relied_on(1.0, late_by_half, objective) == pytest.approx(1.5)
    assert relative(3.0, 1.5, objective) == pytest.approx(2.0)
    assert relied_on(0.2, 2.0, objective) == pytest.approx(0.2 + LEAST_SHARE * objective)
