"""What is moved between two passes: as much as those who wait for it gain by what the others lose, and what arrives."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.kv_cache.ingest import MAX_DUE_PASSES, GapBudget, MoveRate, gap_seconds

PASS = 0.02
"""Seconds of a pass, where nothing else is said."""
KV_SECONDS = 0.1
"""What it takes to write the KV of a request."""


def _learned(*sizes: int, fixed_seconds: float = 1e-5, byte_seconds: float = 1e-9) -> GapBudget:
    budget = GapBudget()
    budget.begin(0.0, num_running=0, num_waiting=1)
    for size in sizes * 20:
        budget.note_write(size, fixed_seconds + byte_seconds * size)
    return budget


def _begin(budget: GapBudget, *passes: float, num_running: int = 10, num_waiting: int = 1) -> None:
    for seconds in passes or (PASS, PASS):
        budget.begin(seconds, num_running=num_running, num_waiting=num_waiting)


def test_nothing_is_held_back_while_nothing_runs() -> None:
    """Whatever has been written before."""
    budget = _learned(1000, 100_000)
    _begin(budget, num_running=0)
    assert budget.affordable_bytes() == math.inf


def test_before_the_first_write_nothing_is_known_to_fit() -> None:
    """The smallest piece is then written and timed."""
    budget = GapBudget()
    _begin(budget)
    assert budget.affordable_bytes() == 0


def test_a_piece_is_as_large_as_what_is_left_of_the_gap() -> None:
    """One waits, ten run: a tenth of 20 ms, less what every piece takes, at 1 GB/s."""
    budget = _learned(1000, 100_000, 1_000_000)
    _begin(budget)
    assert budget.affordable_bytes() == pytest.approx(1.99e6, rel=0.02)


def test_what_every_piece_takes_comes_off_the_gap() -> None:
    """Half a millisecond of two."""
    budget = _learned(1000, 100_000, 1_000_000, fixed_seconds=5e-4)
    _begin(budget)
    assert budget.affordable_bytes() == pytest.approx(1.5e6, rel=0.02)


def test_one_long_pass_makes_no_long_gap() -> None:
    """The next one may be short again."""
    budget = _learned(1000, 100_000, 1_000_000)
    _begin(budget, 0.02, 0.02, 0.5)
    assert budget.affordable_bytes() == pytest.approx(1.99e6, rel=0.02)


def test_what_has_arrived_since_the_last_gap_may_be_written_besides() -> None:
    """Once: in the gap after that it is part of what waits."""
    budget = _learned(1000, 100_000, 1_000_000)
    _begin(budget)
    budget.note_arrival(3_000_000)
    _begin(budget, PASS)
    assert budget.affordable_bytes() == pytest.approx(4.99e6, rel=0.02)
    _begin(budget, PASS)
    assert budget.affordable_bytes() == pytest.approx(1.99e6, rel=0.02)


def test_a_gap_that_took_too_long_is_paid_back_by_those_after_it() -> None:
    """But never by more than four: the machine may have paused."""
    budget = _learned(1000, 100_000)
    _begin(budget)
    budget.note_write(1000, 1.0)
    sizes = []
    for _ in range(6):
        _begin(budget, PASS)
        sizes.append(budget.affordable_bytes())
    assert sizes[:4] == [0, 0, 0, 0]
    assert sizes[4] > 0


def test_the_rate_of_writing_is_that_of_the_last_pieces() -> None:
    """A slow start is forgotten."""
    rate = MoveRate()
    assert rate.bytes_per_second == 0.0
    for num_bytes, seconds in [(1000, 1.0)] + [(1000, 0.001)] * 600:
        rate.note(num_bytes, seconds)
    assert rate.bytes_per_second == pytest.approx(1e6, rel=0.01)


@given(
    pass_seconds=st.floats(1e-4, 1.0),
    num_running=st.integers(1, 256),
    num_waiting=st.integers(1, 256),
    due_seconds=st.floats(0.0, 10.0),
)
def test_no_gap_costs_more_than_it_gains_but_for_what_arrives(
    pass_seconds: float, num_running: int, num_waiting: int, due_seconds: float
) -> None:
    """Token-seconds delayed are token-seconds protected, and passes are never without time."""
    seconds = gap_seconds(pass_seconds, num_running=num_running, num_waiting=num_waiting, due_seconds=due_seconds)
    kept_up = min(due_seconds, MAX_DUE_PASSES * pass_seconds)

    assert num_running * (seconds - kept_up) <= num_waiting * pass_seconds + 1e-9
    assert seconds >= kept_up
    assert seconds <= pass_seconds * (MAX_DUE_PASSES + num_waiting / num_running) + 1e-9


class _Outcome(NamedTuple):
    """What became of a load on a decode node."""

    num_arrived: int
    num_ended: int
    landing_seconds: float
    """Mean time from the arrival of the last of a request's KV until all was written."""
    tpot_seconds: float
    pass_share: float
    """Part of the time that passes had."""


def _serve(utilisation: float, law: Callable[[int, int, float], float], seconds: float = 200.0) -> _Outcome:
    """Return what becomes of requests whose KV takes 0.1 s to write and that generate 32 tokens each.

    Args:
        utilisation: Part of the time that writing takes, of all that arrives.
        law: Returns the seconds of a gap, from how many run and wait, and what arrived takes.
        seconds: Virtual time.
    """
    now = seen = backlog = busy = 0.0
    arrived, landed, ended = deque[float](), list[float](), list[float]()
    running = list[list[float]]()  # tokens so far, moment of the first
    num_landed = 0
    while now < seconds:
        now, busy = now + PASS, busy + PASS
        for each in running:
            each[0] += 1
        ended += [(now - each[1]) / each[0] for each in running if each[0] == 32]
        running = [each for each in running if each[0] < 32]
        due = now * utilisation - seen
        seen, backlog = seen + due, backlog + due
        while (len(arrived) + num_landed + 1) * KV_SECONDS <= seen + 1e-9:
            arrived.append(now)
        gap = min(backlog, law(len(running), len(arrived) + 1, due))
        now, backlog = now + gap, backlog - gap
        while arrived and (num_landed + 1) * KV_SECONDS <= seen - backlog + 1e-9:
            landed.append(now - arrived.popleft())
            running.append([0, now])
            num_landed += 1
    return _Outcome(int(seen / KV_SECONDS), len(ended), sum(landed) / len(landed), sum(ended) / len(ended), busy / now)


def _rule(num_running: int, num_waiting: int, due_seconds: float) -> float:
    return gap_seconds(PASS, num_running=num_running, num_waiting=num_waiting, due_seconds=due_seconds)


@pytest.mark.parametrize("utilisation", [0.1, 0.3, 0.6, 0.85])
def test_throughput_is_kept_as_landing_comes_near_its_capacity(utilisation: float) -> None:
    """Tokens come as fast as the time that writing leaves lets them, and no request waits long for its KV."""
    outcome = _serve(utilisation, _rule)

    assert outcome.num_ended >= 0.97 * outcome.num_arrived
    assert outcome.tpot_seconds <= 1.1 * PASS / (1 - utilisation)
    assert outcome.landing_seconds <= PASS / (1 - utilisation)


def test_a_constant_share_delays_more_than_it_protects() -> None:
    """A tenth of a pass's time is less than what arrives here: KV waits until nobody is left to protect."""
    ruled = _serve(0.3, _rule)
    shared = _serve(0.3, lambda num_running, _waiting, _due: 0.1 * PASS if num_running else math.inf)
    answer_seconds = [each.landing_seconds + 32 * each.tpot_seconds for each in (ruled, shared)]

    assert shared.landing_seconds > 5 * ruled.landing_seconds
    assert answer_seconds[0] < 0.8 * answer_seconds[1]


def test_neither_side_starves_where_more_arrives_than_can_be_written() -> None:
    """Passes keep a tenth of the time, as long as fewer wait than run; writing has most of the rest."""
    outcome = _serve(1.5, _rule)

    assert outcome.pass_share > 0.02
    assert outcome.num_ended >= 0.8 * 200.0 / KV_SECONDS
