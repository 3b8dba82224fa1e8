"""A placement beside what happened: how far each term was off, and what another choice might have saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from baton.capacity.estimate import CostEstimate
from baton.router.ledger import PlacedRequest
from baton.router.records import Outcome

Term = Literal["prefill", "transfer", "pull", "step", "total"]
"""What is compared: computing the prompt, sending its KV, or a cached prefix, one step, and all to the last token."""


class Comparison(NamedTuple):
    """One outcome, judged."""

    ratios: Mapping[Term, float]
    """Measured / estimated, of the terms that both sides have."""
    regret_seconds: float | None
    """Time beyond what the next best candidate was expected to take, 0 or more; None where there was no other one."""


def compare(placed: PlacedRequest, outcome: Outcome) -> Comparison | None:
    """Compare a placement, as it was estimated with all corrections of its time, with its outcome.

    Returns:
        None where something else happened than was placed: a fallback, a preemption, a pull of fewer tokens or of more.
    """
    estimate, num_tokens = placed.candidate.estimate, outcome.num_completion_tokens
    is_other = outcome.fallback_reason or outcome.num_preemptions
    if estimate is None or is_other or not num_tokens or outcome.pulled_tokens != placed.candidate.pulled_tokens:
        return None
    before_seconds = outcome.queue_seconds + outcome.pull_seconds + outcome.prefill_seconds
    total_seconds = before_seconds + outcome.decode_seconds
    pairs: dict[Term, tuple[float, float]] = {"total": (total_seconds, _seconds_of(estimate, num_tokens))}
    if not placed.has_restored(outcome.prefill_cached_tokens):
        pairs["prefill"] = (outcome.prefill_seconds, estimate.prefill_seconds)
    if not placed.candidate.is_local or placed.candidate.pull_node_id:
        pairs["pull" if placed.candidate.pull_node_id else "transfer"] = (
            outcome.transfer_seconds,
            estimate.transfer_seconds,
        )
    if num_tokens > 1:
        steps_seconds = outcome.decode_seconds - outcome.exposed_seconds
        pairs["step"] = (steps_seconds / (num_tokens - 1), estimate.step_seconds)
    other = placed.runner_up
    return Comparison(
        ratios={term: seen / expected for term, (seen, expected) in pairs.items() if seen > 0 and expected > 0},
        regret_seconds=max(0.0, total_seconds - _seconds_of(other, num_tokens)) if other else None,
    )


def _seconds_of(estimate: CostEstimate, num_tokens: int) -> float:
    """Return the estimated time from the queue to the last of `num_tokens` tokens."""
    return estimate.start_seconds + (num_tokens - 1) * estimate.step_seconds
