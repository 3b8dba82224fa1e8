"""What is written between two passes: a share of a pass, whatever writing costs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.kv_cache.ingest import GapBudget

SHARE = 0.1


def _learned(*sizes: int, fixed_seconds: float = 1e-5, byte_seconds: float = 1e-9) -> GapBudget:
    budget = GapBudget(SHARE)
    budget.begin(None)
    for size in sizes * 20:
        budget.note_write(size, fixed_seconds + byte_seconds * size)
    return budget


def test_nothing_is_held_back_while_nobody_generates() -> None:
    """Whatever has been written before."""
    budget = _learned(1000, 100_000)
    budget.begin(None)
    assert budget.affordable_bytes() == math.inf


def test_a_share_of_zero_holds_nothing_back() -> None:
    """Even beside a pass."""
    budget = GapBudget(0.0)
    budget.begin(0.02)
    assert budget.affordable_bytes() == math.inf


def test_before_the_first_write_nothing_is_known_to_fit() -> None:
    """The smallest piece is then written and timed."""
    budget = GapBudget(SHARE)
    budget.begin(0.02)
    assert budget.affordable_bytes() == 0


def test_a_piece_is_as_large_as_what_is_left_of_the_gap() -> None:
    """A tenth of 20 ms, less what every piece takes, at 1 GB/s."""
    budget = _learned(1000, 100_000, 1_000_000)
    budget.begin(0.02)
    budget.begin(0.02)
    assert budget.affordable_bytes() == pytest.approx(1.99e6, rel=0.02)


def test_one_long_pass_makes_no_long_gap() -> None:
    """The next one may be short again."""
    budget = _learned(1000, 100_000, 1_000_000)
    for seconds in (0.02, 0.02, 0.5):
        budget.begin(seconds)
    assert budget.affordable_bytes() == pytest.approx(1.99e6, rel=0.02)


def test_a_gap_that_took_too_long_is_paid_back_by_those_after_it() -> None:
    """But never by more than four: the machine may have paused."""
    budget = _learned(1000, 100_000)
    budget.begin(0.02)
    budget.begin(0.02)
    budget.note_write(1000, 1.0)
    sizes = []
    for _ in range(6):
        budget.begin(0.02)
        sizes.append(budget.affordable_bytes())
    assert sizes[:4] == [0, 0, 0, 0]
    assert sizes[4] > 0


@given(
    fixed=st.floats(1e-6, 1e-3),
    per_byte=st.floats(1e-11, 1e-7),
    passes=st.lists(st.floats(1e-3, 0.5), min_size=5, max_size=40),
)
def test_over_many_gaps_the_share_is_kept(fixed: float, per_byte: float, passes: list[float]) -> None:
    """Beside pieces of no size, which are written in every gap so that no request waits for ever."""
    budget = _learned(500, 50_000, 5_000_000, fixed_seconds=fixed, byte_seconds=per_byte)
    written = forced = 0.0
    for seconds in passes:
        budget.begin(seconds)
        size = budget.affordable_bytes()
        if not size:
            forced += fixed
        seconds_written = fixed + per_byte * size
        budget.note_write(int(size), seconds_written)
        written += seconds_written
    assert written <= 1.05 * SHARE * sum(passes) + forced + fixed
