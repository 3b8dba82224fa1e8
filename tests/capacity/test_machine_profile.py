"""What a machine can do."""

from __future__ import annotations

import pytest

from baton.capacity.hardware import MachineProfile, measured_rate, read_profile


def test_a_rate_is_the_median_with_the_distance_of_the_quartiles() -> None:
    """One run that something delayed moves neither."""
    rate = measured_rate(10.0, [1.0, 1.0, 1.0, 1.0, 5.0])

    assert (rate.median, rate.spread, rate.num_runs) == (10.0, 0.0, 5)
    assert measured_rate(120.0, [15.0, 12.0, 10.0]).spread == pytest.approx(0.2)


@pytest.mark.parametrize("seconds", [[], [1.0], [1.0, 0.0]])
def test_too_few_runs_or_no_time_are_refused(seconds: list[float]) -> None:
    """There would be no spread, or no rate."""
    with pytest.raises(ValueError):
        measured_rate(1.0, seconds)


def test_a_profile_comes_back_as_it_was_kept() -> None:
    """Anything else in the file is no profile."""
    rate = measured_rate(6.0, [6.0, 3.0, 2.0])
    profile = MachineProfile(
        "here",
        "cpu",
        "torch",
        "2026-11-21T00:00:00+00:00",
        {"float32": rate},
        rate,
        rate,
        rate,
        rate,
        3,
        2,
        1,
    )

    assert read_profile(profile.as_json()) == profile
    for text in ("", "[]", "{}", "null", profile.as_json().replace('"machine"', '"nothing"')):
        with pytest.raises(ValueError):
            read_profile(text)
