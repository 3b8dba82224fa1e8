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


def test_a_short_prompt_shares_the_passes_with_the_first_in_turn() -> None:
    """At half the node's speed it waits as long as it computes, and twice for shorter ones."""
    queue = PromptQueue.of([10.0, 20.0, 0.1])

    assert queue.wait_seconds(1.0) == pytest.approx(1.2)
    assert queue.wait_seconds(0.05) == pytest.approx(0.05)


def test_passes_are_waited_for_to_their_end() -> None:
    """Half of the one that runs on average, then the one that computes the prompt."""
    assert PromptQueue.of([10.0], pass_seconds=0.4).wait_seconds(0.1) == pytest.approx(0.2 + 0.4 - 0.1)


def test_a_reported_queue_ages_as_the_engine_deals_passes_out() -> None:
    """Half of the time goes to the first in turn, half to the shortest; what is left over goes on."""
    assert aged_queue([10.0, 2.0], 1.0, []).seconds == (1.5, 9.5)
    assert aged_queue([1.0, 2.0], 10.0, []) is EMPTY_QUEUE


def test_what_was_placed_is_computed_after_what_was_listed() -> None:
    """And not before it was placed."""
    assert aged_queue([1.0], 2.0, [PlacedPrompt(3.0, 1.5)]).seconds == (2.0,)
    assert aged_queue([], 9.0, [PlacedPrompt(3.0, 0.5)]).seconds == (2.5,)


def test_placed_prompts_are_computed_one_after_the_other() -> None:
    """A node that was idle before they came has computed no more of them together than time has passed."""
    assert aged_queue([], 9.0, [PlacedPrompt(3.0, 0.5), PlacedPrompt(3.0, 0.5)]).total_seconds == 5.5
