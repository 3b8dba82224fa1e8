"""What was estimated of a request beside what was measured, term by term: for answers to "why was it slow?". Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from baton.capacity.cost import CostEstimate, expected_seconds


class TermComparison(NamedTuple):
    """One term of one request."""

    term: str
    """Its name: queue, pull, restore, prefill, transfer, exposed, join, start, step, decode, total or imposed."""
    estimated_seconds: float | None
    """What was expected; None: nothing."""
    measured_seconds: float | None
    """What it took; None: not measured."""

    @property
    def ratio(self) -> float | None:
        """Return measured / estimated; None unless both are above 0."""
        if not self.estimated_seconds or not self.measured_seconds:
            return None
        return self.measured_seconds / self.estimated_seconds


def compare_terms(
    estimate: CostEstimate | None, measured: Mapping[str, float] | None, num_tokens: int
) -> tuple[TermComparison, ...]:
    """Return every term that either side has, in the order in which a request goes through them.

    decode covers all tokens but the first, without the waits for KV and for the step that runs; start ends where
    decoding can begin; total is both. A restore is measured as a part of the prefill, never by itself, and what is
    imposed on others is not measured.

    Args:
        estimate: Of what was placed; None: not known.
        measured: Seconds of each of `MEASURED_TERMS`; None: no outcome (yet).
        num_tokens: Tokens that were generated; 0: not known, and the estimate's own count stands in.
    """
    expected = _estimated(estimate, num_tokens) if estimate else {}
    seen = _measured(measured, num_tokens) if measured else {}
    pairs = [TermComparison(term, expected.get(term), seen.get(term)) for term in _ORDER]
    return tuple(pair for pair in pairs if pair.estimated_seconds or pair.measured_seconds or pair.term in _ALWAYS)


_ORDER = (
    "queue",
    "pull",
    "restore",
    "prefill",
    "transfer",
    "exposed",
    "join",
    "start",
    "step",
    "decode",
    "total",
    "imposed",
)
_ALWAYS = ("queue", "prefill", "start", "step", "decode", "total")
"""Terms that every request has, if only with 0 seconds."""


def _estimated(estimate: CostEstimate, num_tokens: int) -> Mapping[str, float]:
    count = num_tokens or estimate.expected_output_tokens
    return {
        "queue": estimate.queue_seconds,
        "pull": estimate.pull_seconds,
        "restore": estimate.restore_seconds,
        "prefill": estimate.prefill_seconds,
        "transfer": estimate.transfer_seconds,
        "exposed": estimate.exposed_seconds,
        "join": estimate.join_seconds,
        "start": estimate.start_seconds,
        "step": estimate.step_seconds,
        "decode": max(0.0, count - 1) * estimate.step_seconds,
        "total": expected_seconds(estimate, count),
        "imposed": estimate.imposed_seconds,
    }


def _measured(seen: Mapping[str, float], num_tokens: int) -> Mapping[str, float]:
    waited = seen["exposed"] + seen["join"]
    first_token = seen["queue"] + seen["pull"] + seen["prefill"]
    terms = {term: seen[term] for term in ("queue", "pull", "prefill", "transfer", "exposed", "join")}
    terms["start"] = first_token + waited
    if num_tokens:  # the first token of a remote prefill is out before its KV is in: that wait is no step
        terms["decode"] = max(0.0, seen["decode"] - waited)
        terms["total"] = first_token + max(seen["decode"], waited)
    if num_tokens > 1:
        terms["step"] = terms["decode"] / (num_tokens - 1)
    return terms
