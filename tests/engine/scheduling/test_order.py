"""Turns, and the division of a pass among prompts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.scheduling.scheduler import (
    LEVEL_SECONDS,
    MAX_HANDICAP_SECONDS,
    PromptDemand,
    due_seconds,
    share_tokens,
)


@pytest.mark.parametrize(
    ("demands", "num_tokens", "max_prompts", "expected"),
    [
        ([], 8, 0, []),
        ([(100, 100, 0)], 8, 0, [8]),
        ([(3, 3, 0)], 8, 0, [3]),
        ([(100, 100, 0), (3, 3, 0)], 8, 0, [5, 3]),
        ([(100, 100, 0), (90, 90, 0)], 8, 0, [4, 4]),
        ([(100, 100, 0), (90, 90, 0), (2, 2, 0)], 8, 0, [4, 2, 2]),
        ([(3, 100, 0), (90, 90, 0)], 8, 0, [3, 5]),
        ([(3, 100, 0), (90, 90, 0)], 7, 0, [3, 4]),
        ([(100, 100, 0), (3, 3, 1)], 8, 0, [8, 0]),
        ([(100, 100, 0), (3, 3, 0)], 8, 1, [8, 0]),
        ([(100, 100, 0), (90, 90, 0), (3, 3, 0)], 8, 2, [5, 0, 3]),
        ([(100, 100, 0), (3, 3, 0)], 1, 0, [1, 0]),
        ([(100, 100, 0), (3, 3, 0)], 0, 0, [0, 0]),
    ],
)
def test_half_of_a_pass_goes_by_turns_and_half_to_who_has_least_left(
    demands: list[tuple[int, int, int]], num_tokens: int, max_prompts: int, expected: list[int]
) -> None:
    """A claim is what it can use, what it has left, and its priority."""
    assert share_tokens([PromptDemand(*claim) for claim in demands], num_tokens, max_prompts=max_prompts) == expected


_CLAIMS = st.builds(
    lambda num_pending, chunk, priority: PromptDemand(min(num_pending, chunk), num_pending, priority),
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(-1, 1),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_CLAIMS, max_size=6), st.integers(0, 80), st.integers(0, 4))
def test_nothing_is_dealt_out_twice_or_left_over(
    demands: list[PromptDemand], num_tokens: int, max_prompts: int
) -> None:
    """Whoever's turn it is gets half of the pass; what somebody can use is used."""
    granted = share_tokens(demands, num_tokens, max_prompts=max_prompts)

    assert all(0 <= taken <= claim.num_tokens for taken, claim in zip(granted, demands, strict=True))
    assert sum(granted) <= num_tokens
    if demands:
        assert granted[0] >= min(demands[0].num_tokens, num_tokens - num_tokens // 2)
    if max_prompts:
        assert sum(1 for taken in granted if taken) <= max_prompts
    else:
        assert sum(granted) == min(num_tokens, sum(claim.num_tokens for claim in demands))


def test_a_level_of_priority_counts_as_waiting() -> None:
    """Who came that much earlier is not overtaken."""
    assert due_seconds(10.0, 0) < due_seconds(10.0, 1) == due_seconds(10.0 + LEVEL_SECONDS, 0)
    assert due_seconds(10.0, -2) == due_seconds(10.0 - 2 * LEVEL_SECONDS, 0)


def test_a_long_prompt_lets_shorter_ones_pass_for_a_while() -> None:
    """As long as its own work takes, and never longer than the bound."""
    assert due_seconds(10.0, 0, 2.0) == due_seconds(12.0, 0)
    assert due_seconds(10.0, 0, 1e6) == due_seconds(10.0 + MAX_HANDICAP_SECONDS, 0)
