"""Who comes first, and how the prompts of a pass share its positions.

A sequence's turn is fixed when it comes: the moment at which its prompt would be computed if it were alone, later by
`LEVEL_SECONDS` per level of its priority. A level counts as that much waiting, and so does work: a short prompt passes
a long one that came not much earlier. Who comes later than that overtakes nobody, so nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

LEVEL_SECONDS = 5.0
"""Waiting that makes up for one level of priority."""
MAX_HANDICAP_SECONDS = 10.0
"""Longest time that a prompt's own work puts its turn off: what it is thought to take may be far from the truth."""


def due_seconds(arrival_seconds: float, priority: int, prompt_seconds: float = 0.0) -> float:
    """Return the moment by which a sequence's turn is reckoned; the earliest comes first.

    Args:
        arrival_seconds: When it came.
        priority: Lower comes earlier.
        prompt_seconds: What it takes to compute its prompt; 0: not known.
    """
    return arrival_seconds + min(prompt_seconds, MAX_HANDICAP_SECONDS) + LEVEL_SECONDS * priority


class Claim(NamedTuple):
    """What a prompt could use of a pass."""

    num_tokens: int
    """Positions that may be computed of it in one pass, 1 or more."""
    num_pending: int
    """Positions that are left of it in all."""
    priority: int
    """Its request's."""


def share(claims: Sequence[Claim], num_tokens: int, *, max_prompts: int = 0) -> list[int]:
    """Deal a pass's positions out to prompts.

    One half goes to whose turn it is, so that a long prompt is computed at half the node's speed at least; the other
    half to who has least left, so that a short one never waits for all of a long one. A lower priority gets of the
    second half what higher ones leave. What one half has left over, the other uses.

    Args:
        claims: In order of turns.
        num_tokens: Positions there are, 0 or more.
        max_prompts: Prompts that may get any; 0: all.

    Returns:
        Positions for each claim: none above its `num_tokens`, together as many as there are and are wanted.
    """
    by_size = sorted(range(len(claims)), key=lambda index: (claims[index].priority, claims[index].num_pending, index))
    if 0 < max_prompts < len(claims):
        chosen = {0, *[index for index in by_size if index != 0][: max_prompts - 1]}
        by_size = [index for index in by_size if index in chosen]
    granted = [0] * len(claims)
    num_left = _deal(claims, granted, sorted(by_size), num_tokens - num_tokens // 2) + num_tokens // 2
    _deal(claims, granted, by_size, num_left)
    return granted


def _deal(claims: Sequence[Claim], granted: list[int], order: Iterable[int], num_tokens: int) -> int:
    """Give as much as each can use, in this order; return what is left."""
    for index in order:
        taken = min(claims[index].num_tokens - granted[index], num_tokens)
        granted[index] += taken
        num_tokens -= taken
    return num_tokens
