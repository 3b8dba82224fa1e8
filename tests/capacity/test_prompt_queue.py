"""How long a prompt waits among others."""

from __future__ import annotations

import pytest

from baton.capacity.cost import EMPTY_QUEUE, PlacedPrompt, PromptQueue, aged_queue


def test_nobody_waits_on_an_idle_node() -> None:
    """Nothing is queued, or nothing is left of it."""
    assert EMPTY_QUEUE.wait_seconds(1.0) == 0.0
    assert PromptQueue.of([0.0, -1.0]) is EMPTY_QUEUE


def test_the_longest_prompt_waits_for_all() -> None:
    """Every other one has less left."""
    assert PromptQueue.of([0.5, 0.25]).wait_seconds(2.0) == 0.75


def test_a_short_prompt_has_a_tenth_of_the_passes_beside_the_first_in_turn() -> None:
    """At a tenth of the node's speed it waits nine times as long as it computes, and ten times for shorter ones."""
    queue = PromptQueue.of([10.0, 20.0, 0.1])

    assert queue.wait_seconds(1.0) == pytest.approx(10.0)
    assert queue.wait_seconds(0.05) == pytest.approx(0.45)
    assert queue.wait_seconds(5.0) == pytest.approx(30.1)


def test_passes_are_waited_for_to_their_end() -> None:
    """Half of the one that runs on average, then the one that computes the prompt."""
    assert PromptQueue.of([10.0], pass_seconds=0.4).wait_seconds(0.03) == pytest.approx(0.2 + 0.4 - 0.03)


def test_a_reported_queue_ages_as_the_engine_deals_passes_out() -> None:
    """A tenth of the time goes to the shortest, the rest to the first in turn; what is left over goes on."""
    assert aged_queue([10.0, 2.0], 1.0, []).seconds == pytest.approx((1.9, 9.1))
    assert aged_queue([1.0, 2.0], 10.0, []) is EMPTY_QUEUE


def test_what_was_placed_is_computed_after_what_was_listed() -> None:
    """And not before it was placed."""
    assert aged_queue([1.0], 2.0, [PlacedPrompt(3.0, 1.5)]).seconds == (2.0,)
    assert aged_queue([], 9.0, [PlacedPrompt(3.0, 0.5)]).seconds == (2.5,)


def test_placed_prompts_are_computed_one_after_the_other() -> None:
    """A node that was idle before they came has computed no more of them together than time has passed."""
    assert aged_queue([], 9.0, [PlacedPrompt(3.0, 0.5), PlacedPrompt(3.0, 0.5)]).total_seconds == 5.5
