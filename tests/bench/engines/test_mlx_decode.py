"""The arithmetic of bench.engines.mlx_decode."""

from __future__ import annotations

from bench.engines.mlx_decode import join_steps, ratio, worst_gap


def test_ratio_is_the_median_over_rounds() -> None:
    """Each round is compared with itself: 2, 3 and 10 times."""
    samples = [
        {"case": "d1", "system": system, "tokens": 10, "cpu_seconds": seconds}
        for system, times in (("baton", (1.0, 1.0, 1.0)), ("mlx-lm", (2.0, 10.0, 3.0)))
        for seconds in times
    ]

    assert ratio(samples, "d1") == 3.0


def test_longest_gap_counts_in_median_gaps() -> None:
    """One gap of three steps among gaps of one."""
    assert worst_gap({"gaps": [0.1, 0.1, 0.3, 0.1]}) == 0.3 / 0.1


def test_cost_of_a_join_is_what_the_steps_after_it_take_beyond_as_many_others() -> None:
    """Steps take 1 s; when somebody has joined after the sixth, the next one lasts 3.5 s."""
    gaps = [1.0] * 5 + [3.5] + [1.0] * 9

    assert join_steps(gaps, [6]) == [2.5]
