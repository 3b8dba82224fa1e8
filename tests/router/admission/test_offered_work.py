"""The queue that is of use."""

from __future__ import annotations

import math

import pytest

from baton.router.admission.work_limit import OfferedWork
from router.samples import Clock


def offered(*, times: int, prompt_seconds: float = 0.5) -> OfferedWork:
    """Return work of which one in so many prompts was admitted."""
    work = OfferedWork(Clock())
    for number in range(20 * times):
        work.add(prompt_seconds, is_admitted=number % times == 0)
    return work


def test_a_queue_is_of_use_without_bounds_where_nothing_is_refused() -> None:
    """Whoever waits is served."""
    assert offered(times=1).useful_queue_seconds() == math.inf


@pytest.mark.parametrize(("times", "room"), [(2, 5.66), (4, 3.12), (100, 2.0)])
def test_the_more_is_refused_the_fewer_need_to_wait(times: int, room: float) -> None:
    """Room for K prompts leaves a node idle for a hundredth: (r - 1) / (r^(K+1) - 1); two always have room."""
    assert offered(times=times).useful_queue_seconds() == pytest.approx((room - 1) * 0.5, rel=0.01)


def test_long_prompts_make_up_a_queue() -> None:
    """Of nine of 0.1 s and one of 9.1 s, a queue is counted in such of 8.29 s."""
    work = OfferedWork(Clock())
    for number in range(1000):
        work.add(9.1 if number % 10 == 9 else 0.1, is_admitted=number % 4 == 0)

    assert work.useful_queue_seconds() > 8.0


def test_what_was_refused_long_ago_is_forgotten() -> None:
    """By halves."""
    clock = Clock()
    work = OfferedWork(clock)
    work.add(1.0, is_admitted=False)
    clock.seconds += 100
    for _ in range(10):
        work.add(1.0, is_admitted=True)

    assert work.useful_queue_seconds() > 50
