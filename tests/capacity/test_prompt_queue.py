"""How long a prompt waits among others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity.cost import (
    EMPTY_QUEUE,
    SHORT_SHARE,
    PromptQueue,
    QueuedWork,
    compute_prompts,
    overtaking,
    prefill_seconds,
    prompt_seconds,
)
from baton.capacity.hardware import PRESETS
from capacity.samples import LLAMA_3_1_8B


def test_nobody_waits_on_an_idle_node() -> None:
    """Nothing is queued, or nothing is left of it."""
    assert EMPTY_QUEUE.wait_seconds(1.0) == 0.0
    assert PromptQueue.of([0.0, -1.0]) is EMPTY_QUEUE


def test_the_longest_prompt_waits_for_all() -> None:
    """Every other one has less left."""
    assert PromptQueue.of([0.5, 0.25]).wait_seconds(2.0) == 0.75


def test_a_short_prompt_has_a_tenth_of_the_passes_beside_the_first_in_turn() -> None:
    """At a tenth of the node's speed it waits nine times as long as it computes, and ten times for those before it."""
    queue = PromptQueue.of([10.0, 20.0, 0.1])

    assert queue.wait_seconds(1.0) == pytest.approx(10.0)
    assert queue.wait_seconds(0.05) == pytest.approx(1.45)
    assert queue.wait_seconds(5.0) == pytest.approx(30.1)


def test_who_is_not_through_sooner_by_the_tenth_does_not_have_it() -> None:
    """It would delay those before it, and be through with them all the same."""
    assert overtaking([10.0, 2.0, 1.0, 0.1]) == [2, 3]
    assert overtaking([1.0, 10.0, 0.8, 0.8]) == [2]
    assert PromptQueue.of([10.0, 2.0]).sooner_seconds == 0.0


@given(st.lists(st.floats(0.01, 20.0), max_size=8), st.floats(0.0, 30.0), st.floats(0.01, 20.0))
def test_what_a_prompt_waits_for_is_known_when_it_comes(left: list[float], age: float, later: float) -> None:
    """Whoever comes after it takes a tenth at most, and who has something to compute is never idle."""
    alone, beside = list(left), [*left, later]

    idle = compute_prompts(alone, age)
    compute_prompts(beside, age)

    assert idle == pytest.approx(max(0.0, age - sum(left)))
    assert all(after <= before + SHORT_SHARE * age + 1e-9 for before, after in zip(alone, beside, strict=False))


def test_passes_are_waited_for_to_their_end() -> None:
    """Half of the one that runs on average, then the one that computes the prompt."""
    assert PromptQueue.of([10.0], pass_seconds=0.4).wait_seconds(0.03) == pytest.approx(0.2 + 0.4 - 0.03)


def test_a_reported_queue_ages_as_the_engine_deals_passes_out() -> None:
    """A tenth of the time goes to who is through sooner, the rest to the first in turn; what is left over goes on."""
    assert QueuedWork([10.0, 2.0]).at(1.0).seconds == pytest.approx((9.0, 2.0))
    assert QueuedWork([10.0, 1.0]).at(1.0).seconds == pytest.approx((9.1, 0.9))
    assert QueuedWork([10.0, 1.0], 5.0, [(0.1, 6.5)]).at(7.0).seconds == pytest.approx((8.2, 0.8, 0.1))
    assert QueuedWork([10.0, 1.0]).at(2.0, pace=0.5).seconds == pytest.approx((9.1, 0.9))
    assert QueuedWork([1.0, 2.0]).at(10.0) is EMPTY_QUEUE


def test_what_was_placed_is_computed_after_what_was_listed() -> None:
    """And not before it was placed."""
    assert QueuedWork([1.0], 8.0, [(3.0, 8.5)]).at(10.0).seconds == (2.0,)
    assert QueuedWork([], 1.0, [(3.0, 9.5)]).at(10.0).seconds == (2.5,)


def test_placed_prompts_are_computed_one_after_the_other() -> None:
    """A node that was idle before they came has computed no more of them together than time has passed."""
    assert QueuedWork([], 1.0, [(3.0, 9.5), (3.0, 9.5)]).at(10.0).total_seconds == 5.5


def test_half_of_the_short_prompts_that_wait_share_a_pass() -> None:
    """Which reads the weights once; the first has its pass for itself, as has a prompt that fills it."""
    shape, profile = LLAMA_3_1_8B, PRESETS["dgx-spark"].profile()
    alone = prompt_seconds(shape, profile, 0, 64, pass_tokens=0)

    assert alone == pytest.approx(shape.weight_bytes / profile.decode_bytes_per_second)
    assert prompt_seconds(shape, profile, 0, 64, pass_tokens=512) == pytest.approx((alone + alone / 8) / 2, rel=0.05)
    assert prompt_seconds(shape, profile, 0, 4096, pass_tokens=512) == prefill_seconds(shape, profile, 0, 4096)
