"""What outcomes teach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.router.calibration import (
    HALF_LIFE_SECONDS,
    MAX_FACTOR,
    MAX_FACTOR_PER_OUTCOME,
    Calibration,
    OutputLengths,
)
from router.samples import Clock


def test_a_steady_ratio_is_learnt() -> None:
    """A node that always takes twice as long as estimated ends near a factor of 2."""
    calibration: Calibration[str] = Calibration(Clock())

    for _ in range(40):
        calibration.add("a", 2.0, 1.0)

    assert calibration.factor("a") == pytest.approx(2.0, rel=0.01)
    assert calibration.factor("b") == 1.0


@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=60))
def test_no_outcome_moves_a_factor_far(ratios: list[float]) -> None:
    """Whatever is reported, one outcome moves the factor by at most the bound, and all together stay within theirs."""
    calibration: Calibration[str] = Calibration(Clock())

    before = 1.0
    for ratio in ratios:
        calibration.add("a", ratio, 1.0)
        after = calibration.factor("a")
        assert 1 / MAX_FACTOR_PER_OUTCOME * 0.999 <= after / before <= MAX_FACTOR_PER_OUTCOME * 1.001
        assert 1 / MAX_FACTOR * 0.999 <= after <= MAX_FACTOR * 1.001
        before = after


def test_corrections_fade_without_outcomes() -> None:
    """A node that looked slow is tried again: after a half-life half of the correction's logarithm is left."""
    clock = Clock()
    calibration: Calibration[str] = Calibration(clock)
    for _ in range(60):
        calibration.add("a", 4.0, 1.0)

    clock.seconds += HALF_LIFE_SECONDS

    assert calibration.factor("a") == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize(("measured", "estimated"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_outcomes_without_a_duration_say_nothing(measured: float, estimated: float) -> None:
    """A missing measurement is not a ratio of 0."""
    calibration: Calibration[str] = Calibration(Clock())

    calibration.add("a", measured, estimated)

    assert calibration.reported("a") == 0.0
    assert calibration.factor("a") == 1.0


def test_a_forgotten_node_begins_anew() -> None:
    """A restarted process has measured itself; old corrections are dropped, other nodes' stay."""
    calibration: Calibration[str] = Calibration(Clock())
    calibration.add("a", 2.0, 1.0)
    calibration.add("b", 2.0, 1.0)

    calibration.forget(lambda key: key == "a")

    assert calibration.reported("a") == 0.0
    assert calibration.reported("b") > 1.0


def test_output_lengths_are_averaged_per_model() -> None:
    """The mean moves toward what requests of the model generate."""
    lengths = OutputLengths()
    assert lengths.mean("m") is None

    for _ in range(30):
        lengths.add("m", 100)

    assert lengths.mean("m") == pytest.approx(100)
    assert lengths.mean("other") is None
