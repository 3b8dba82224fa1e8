"""How long a prompt waits among others."""

from __future__ import annotations

import pytest

from baton.capacity.prompt_queue import PlacedPrompt, PromptQueue, aged_queue


@pytest.mark.parametrize(
    ("queued", "own", "wait"),
    [
        ([], 1.0, 0.0),
        ([1.0] * 5, 1.0, 5.0),  # equal ones that came first go first
        ([10.0], 1.0, 1.0),  # half of each pass goes to who has least left
        ([10.0, 0.5], 1.0, 2.0),
        ([0.5, 0.5], 10.0, 1.0),  # a long one waits for all that are there
    ],
)
def test_a_prompt_waits_for_those_that_are_no_longer_than_itself(queued: list[float], own: float, wait: float) -> None:
    """At half speed while longer ones have the other half, and never for more than all."""
    assert PromptQueue.of(queued).wait_seconds(own) == pytest.approx(wait)


def test_a_queue_that_was_reported_goes_on_until_it_is_placed_upon() -> None:
    """Half of the time to whose turn it is, half to the shortest; what came since is begun when that is done."""
    assert aged_queue([4.0, 1.0], 2.0, ()).seconds == (3.0,)
    assert aged_queue([1.0], 3.0, [PlacedPrompt(2.0, 0.5), PlacedPrompt(2.0, 0.1)]).seconds == (1.5, 1.9)
    assert aged_queue([1.0], 1.0, [PlacedPrompt(2.0, 0.5)]).total_seconds == 2.0
