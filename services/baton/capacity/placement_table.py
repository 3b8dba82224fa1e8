"""Candidates as rows of text, for `baton plan` and for people who ask why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from baton.capacity.cost import MEASURED_TERMS, CostEstimate, expected_seconds
from baton.capacity.placement import Candidate


class PlanRow(NamedTuple):
    """One candidate; every field is text ready to print, "-" where there is nothing.

    `prefill` is a node, or "local"; `cached`: prompt tokens in the caches of decode / prefill node; `wire`: number
    formats of K and V; `exposed`: what does not hide behind computation, or of a pull behind the queue; `total`: what
    candidates are compared by; `note`: "chosen" or how much dearer than the choice, and what is pulled, or why not.
    """

    decode: str
    prefill: str
    cached: str
    queue: str
    compute: str
    transfer: str
    wire: str
    exposed: str
    ttft: str
    start: str
    step: str
    decode_time: str
    imposed: str
    total: str
    note: str


_TITLES = {
    "cached": "cached d/p",
    "compute": "prefill",
    "ttft": "TTFT",
    "decode_time": "decode",
    "note": "choice / reason",
}
"""Of the columns that have another title than their field's name."""
HEADINGS = tuple(_TITLES.get(name, name) for name in PlanRow._fields)
"""Column titles, in the order of `PlanRow`."""


def plan_rows(candidates: Iterable[Candidate]) -> list[PlanRow]:
    """Return one row per candidate, in their order: the choice first, as decisions have them."""
    ordered = list(candidates)
    best = ordered[0].estimate if ordered else None
    return [_row(candidate, best, is_choice=index == 0) for index, candidate in enumerate(ordered)]


def format_seconds(seconds: float) -> str:
    """Return a duration with three significant digits in the unit that suits it."""
    if seconds == 0:
        return "0"
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= 0.9995 * scale:  # not 1e+03 of the next unit
            return f"{seconds / scale:.3g} {unit}" if abs(seconds) < 999.5 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def _row(candidate: Candidate, best: CostEstimate | None, *, is_choice: bool) -> PlanRow:
    ends = (candidate.decode_node_id, candidate.prefill_node_id or "local")
    estimate = candidate.estimate
    if estimate is None or best is None:
        return PlanRow._make((*ends, *["-"] * 12, candidate.infeasible_reason))
    before = (estimate.queue_seconds, estimate.prefill_seconds, estimate.transfer_seconds)
    after = (
        estimate.exposed_seconds + estimate.pull_seconds + estimate.restore_seconds,
        estimate.time_to_first_token_seconds,
        estimate.start_seconds,
        estimate.step_seconds,
        estimate.decode_seconds,
        estimate.imposed_seconds,
        estimate.total_seconds,
    )
    cached = f"{candidate.decode_cached_tokens}/{candidate.prefill_cached_tokens}"
    dearer = estimate.total_seconds - best.total_seconds
    pull = f", {candidate.pulled_tokens} tokens from {candidate.pull_node_id}" if candidate.pull_node_id else ""
    num_restored = max(candidate.decode_restored_tokens, candidate.prefill_restored_tokens)
    restore = f", {num_restored} tokens from host memory or disk" if num_restored else ""
    link = ", link rate declared" if candidate.is_link_declared else ""
    note = "chosen" if is_choice else f"{'-' if dearer < 0 else '+'}{format_seconds(abs(dearer))}"
    times = (*map(format_seconds, before), _wire(candidate), *map(format_seconds, after))
    return PlanRow._make((*ends, cached, *times, note + pull + restore + link))


def _wire(candidate: Candidate) -> str:
    wire = candidate.wire
    if wire is None:
        return "-"
    return wire.key_dtype if wire.key_dtype == wire.value_dtype else f"{wire.key_dtype}/{wire.value_dtype}"


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
    imposed on others is not measured. `estimate`: of what was placed; None: not known. `measured`: seconds of each of
    `MEASURED_TERMS`; None: no outcome (yet). `num_tokens`: tokens that were generated; 0: not known, and the estimate's
    own count stands in.
    """
    expected = _estimated(estimate, num_tokens) if estimate else {}
    seen = _measured(measured, num_tokens) if measured else {}
    pairs = [TermComparison(term, expected.get(term), seen.get(term)) for term in _ORDER]
    return tuple(pair for pair in pairs if pair.estimated_seconds or pair.measured_seconds or pair.term in _ALWAYS)


_ORDER = (*MEASURED_TERMS[:2], "restore", *MEASURED_TERMS[2:-1], "start", "step", "decode", "total", "imposed")
_ALWAYS = ("queue", "prefill", "start", "step", "decode", "total")
"""Terms that every request has, if only with 0 seconds."""


def _estimated(estimate: CostEstimate, num_tokens: int) -> Mapping[str, float]:
    count = num_tokens or estimate.expected_output_tokens
    terms = {term: getattr(estimate, f"{term}_seconds") for term in _ORDER}
    return terms | {"decode": max(0.0, count - 1) * estimate.step_seconds, "total": expected_seconds(estimate, count)}


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
