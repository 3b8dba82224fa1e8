"""Estimate beside measurement, term by term."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.capacity.cost import MEASURED_TERMS, CostEstimate, expected_seconds
from baton.capacity.placement_table import TermComparison, compare_terms

_ESTIMATE = CostEstimate(
    queue_seconds=0.5,
    prefill_seconds=1.0,
    transfer_seconds=0.8,
    exposed_seconds=0.1,
    join_seconds=0.15,
    time_to_first_token_seconds=1.5,
    start_seconds=1.75,
    step_seconds=0.01,
    expected_output_tokens=256.0,
    imposed_seconds=0.0,
)
_MEASURED = {"queue": 1.0, "pull": 0.0, "prefill": 2.0, "transfer": 0.8, "exposed": 0.2, "join": 0.3, "decode": 2.5}


def test_each_term_has_both_sides_in_the_order_of_a_request() -> None:
    """Steps are without the waits for KV and to join, which the start has; both sides count the tokens that came."""
    terms = compare_terms(_ESTIMATE, _MEASURED, 101)

    assert set(_MEASURED) == set(MEASURED_TERMS)
    assert [pair.term for pair in terms] == [
        "queue",
        "prefill",
        "transfer",
        "exposed",
        "join",
        "start",
        "step",
        "decode",
        "total",
    ]
    ratios = {pair.term: pair.ratio for pair in terms}
    assert ratios == pytest.approx(
        {
            "queue": 2.0,
            "prefill": 2.0,
            "transfer": 1.0,
            "exposed": 2.0,
            "join": 2.0,
            "start": 2.0,
            "step": 2.0,
            "decode": 2.0,
            "total": 5.5 / 2.75,
        }
    )


def test_an_outcome_that_is_not_there_yet_leaves_its_side_empty() -> None:
    """The estimate stands for the output that it counted on."""
    terms = {pair.term: pair for pair in compare_terms(_ESTIMATE, None, 0)}

    assert all(pair.measured_seconds is None and pair.ratio is None for pair in terms.values())
    assert terms["total"].estimated_seconds == pytest.approx(expected_seconds(_ESTIMATE, 256)) == pytest.approx(4.3)


def test_one_token_has_no_step_and_a_local_prefill_no_transfer() -> None:
    """What neither side has is left out, but for what every request has."""
    local = replace(_ESTIMATE, transfer_seconds=0.0, exposed_seconds=0.0, join_seconds=0.0)
    measured = _MEASURED | dict.fromkeys(("transfer", "exposed", "join", "decode"), 0.0)
    terms = {pair.term: pair for pair in compare_terms(local, measured, 1)}

    assert set(terms) == {"queue", "prefill", "start", "step", "decode", "total"}
    assert terms["step"] == TermComparison("step", 0.01, None)
    assert terms["total"] == TermComparison("total", 1.75, 3.0)
