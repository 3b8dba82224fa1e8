"""The limit of work in flight."""

from __future__ import annotations

import pytest

from baton.router.admission.work_limit import ENOUGH_MISSES, FORGOTTEN_SECONDS, GROWTH, WINDOW_OUTCOMES, WorkLimit


def window(limit: WorkLimit, at: float, *, num_missed: int, in_flight: float = 10.0) -> None:
    """Let a window of requests end that were placed in it, the misses last."""
    limit.place(in_flight, 1.0)
    for index in range(WINDOW_OUTCOMES):
        is_kept = index < WINDOW_OUTCOMES - num_missed
        limit.count(is_kept=is_kept, placed_at_seconds=at, now_seconds=at)


def test_there_is_none_until_requests_miss() -> None:
    """However much is in flight."""
    limit = WorkLimit()
    window(limit, 1.0, num_missed=0)

    assert limit.allows(1e9, 1.0, 1.0)


def test_misses_cut_it_in_proportion_and_kept_objectives_raise_it_where_it_is_felt() -> None:
    """From what was in flight: a tenth of misses is a twentieth less."""
    limit = WorkLimit()
    window(limit, 1.0, num_missed=2)
    assert limit.seconds == pytest.approx(9.5)

    window(limit, 2.0, num_missed=0, in_flight=3.0)
    assert limit.seconds == pytest.approx(9.5)
    window(limit, 3.0, num_missed=0, in_flight=9.0)
    assert limit.seconds == pytest.approx(9.5 * (1 + GROWTH))
    assert not limit.allows(9.5, 1.0, 3.0)


def test_what_was_placed_before_a_cut_says_nothing_of_it() -> None:
    """A hundred late requests of one burst cut it once."""
    limit = WorkLimit()
    limit.place(10.0, 1.0)
    for _ in range(100):
        limit.count(is_kept=False, placed_at_seconds=1.0, now_seconds=2.0)

    assert limit.seconds == pytest.approx(5.0)


def test_a_few_misses_are_enough_for_a_cut() -> None:
    """Nobody waits for a whole window of them."""
    limit = WorkLimit()
    limit.place(10.0, 1.0)
    for _ in range(ENOUGH_MISSES):
        limit.count(is_kept=False, placed_at_seconds=1.0, now_seconds=1.0)

    assert limit.seconds < 10.0


def test_it_comes_back_by_halves_to_where_requests_missed() -> None:
    """After a cut to a half, which a moment has caused: at three quarters after one good window."""
    limit = WorkLimit()
    window(limit, 1.0, num_missed=WINDOW_OUTCOMES)
    assert limit.seconds == pytest.approx(5.0)

    window(limit, 2.0, num_missed=0, in_flight=5.0)
    assert limit.seconds == pytest.approx(7.5)


def test_it_is_forgotten_without_outcomes() -> None:
    """And begins anew."""
    limit = WorkLimit()
    window(limit, 1.0, num_missed=WINDOW_OUTCOMES)

    assert limit.allows(100.0, 1.0, 1.0 + 2 * FORGOTTEN_SECONDS)
    limit.count(is_kept=True, placed_at_seconds=200.0, now_seconds=200.0)
    assert limit.seconds == float("inf")
