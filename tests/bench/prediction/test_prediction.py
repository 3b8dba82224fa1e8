"""Terms, ratios and regret of requests whose times are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.internal.v1.router_service_pb2 import CostEstimate
from baton.kv.hashing import block_hashes as own_hashes
from baton.kv.hashing import join_hashes, root_hash
from baton.v1.generation_pb2 import PlacementSummary
from bench.prediction.client import block_hashes
from bench.prediction.regret import Backlog, regrets
from bench.prediction.report import (
    LoadReport,
    Spread,
    error_spreads,
    identical_spreads,
    ratio,
    spread,
    sum_ratios,
    term_spreads,
)
from bench.prediction.sample import Candidate, Measured, Sample, TokenArrival, measured_of

_REMOTE = {"queue": 0.1, "prefill": 0.5, "transfer": 0.4, "exposed": 0.1, "start": 0.7, "step": 0.02}


def candidate(prefill_node: str, **terms: float) -> Candidate:
    """Return a way to run a request whose terms are those of a remote prefill, but for what is given."""
    estimate = CostEstimate(**{f"{name}_seconds": value for name, value in (_REMOTE | terms).items()})
    return Candidate("d", prefill_node, "", estimate)


REMOTE = candidate("p")
LOCAL = candidate("d", queue=0.0, prefill=2.0, transfer=0.0, exposed=0.0, start=2.0)
AS_EXPECTED = Measured(
    queue=0.1, prefill=0.5, transfer=0.4, exposed=0.1, pull=0.0, start=0.7, step=0.02, ttft=0.6, total=0.9
)


def sample(called: float = 0.0, chosen: Candidate = REMOTE, measured: Measured | None = AS_EXPECTED) -> Sample:
    """Return a request of 11 tokens."""
    return Sample(called, 1000, 11, chosen, (REMOTE, LOCAL), measured)


def test_what_happened_as_expected_has_ratios_of_one() -> None:
    """Every term, on both sides of the floor."""
    spreads = term_spreads([sample(), sample()])

    assert set(spreads) == {"prefill", "queue", "transfer", "start", "total", "step"}
    assert all(each.p10 == pytest.approx(1.0) == each.p90 for each in spreads.values())


def test_terms_too_short_to_tell_are_equal() -> None:
    """A queue of a millisecond that was estimated as none is nearly 1; a second is not."""
    assert ratio(0.001, 0.0) == pytest.approx(1.1)
    assert ratio(1.0, 0.0) > 100
    slow = [sample(measured=replace(AS_EXPECTED, queue=0.14))]
    assert term_spreads(slow)["queue"].p50 == pytest.approx(0.15 / 0.11)
    assert term_spreads(slow, 4.0)["queue"].p50 == pytest.approx(0.18 / 0.14)
    assert sum_ratios(slow)["queue"] == pytest.approx(1.4)


def test_what_a_term_was_wrong_by_is_told_as_part_of_the_total() -> None:
    """However near to 0 it is; a step's as often as it was taken."""
    errors = error_spreads([sample(measured=replace(AS_EXPECTED, queue=0.19, step=0.0155))])

    assert errors["queue"].p50 == pytest.approx(0.1)
    assert errors["step"].p50 == pytest.approx(-0.05)
    assert errors["prefill"] == Spread(1, 0.0, 0.0, 0.0)


def test_a_request_that_ran_otherwise_has_no_terms() -> None:
    """What was placed did not happen."""
    assert sample(measured=None).terms == {}


def test_the_gap_after_a_first_token_that_came_ahead_is_no_step() -> None:
    """Decoding began a step before the second message, which has two tokens."""
    arrivals = [TokenArrival(1.0, 1), TokenArrival(1.5, 3), TokenArrival(1.6, 4), TokenArrival(1.8, 6)]

    measured = measured_of(PlacementSummary(), arrivals, asked=0.1, called=0.2)

    assert measured.step == pytest.approx(0.1)
    assert measured.start == pytest.approx(1.5 - 0.2 - 0.2)
    assert (measured.ttft, measured.total) == (pytest.approx(0.9), pytest.approx(1.6))


def test_the_spread_of_identical_requests_is_divided_out() -> None:
    """What differs between equal requests nobody can predict; the median stays."""
    identical = identical_spreads([sample(measured=replace(AS_EXPECTED, prefill=value)) for value in (0.4, 0.5, 0.6)])

    divided = Spread(10, 0.84, 1.05, 1.25).over(identical["prefill"])

    assert divided.p50 == 1.05
    assert 0.95 < divided.p10 < divided.p50 < divided.p90 < 1.1
    assert Spread(10, 0.98, 1.0, 1.02).over(identical["prefill"]) == Spread(10, 1.0, 1.0, 1.0)
    assert spread([]) is None


def test_a_node_works_off_its_backlog() -> None:
    """Two prompts of half a second: a long one waits for what is left of them, one that comes later for nothing."""
    backlog = Backlog([sample(0.0), sample(0.1)], "p")

    assert backlog.wait_seconds(0.0, 9.0) == 0.0
    assert backlog.wait_seconds(0.1, 9.0) == pytest.approx(0.4)
    assert backlog.wait_seconds(0.2, 9.0) == pytest.approx(0.8)
    assert backlog.wait_seconds(1.2, 9.0) == 0.0
    assert Backlog([], "p").wait_seconds(1.0, 9.0) == 0.0


def test_a_short_prompt_does_not_wait_for_long_ones() -> None:
    """It has a tenth of each pass: what needs a fiftieth takes ten; a short one that came before has it first."""
    backlog = Backlog([sample(0.0), sample(0.0), sample(0.0, measured=replace(AS_EXPECTED, prefill=0.02))], "p")

    assert backlog.wait_seconds(0.001, 0.03) == pytest.approx(10 * (0.02 + 0.03) - 0.03)
    assert backlog.wait_seconds(0.001, 0.01) == pytest.approx(10 * (0.02 + 0.01) - 0.01)
    assert Backlog([sample(0.0), sample(0.0)], "p").wait_seconds(0.001, 0.01) == pytest.approx(0.09)


def test_the_best_choice_has_no_regret() -> None:
    """The remote prefill is sooner on an idle node."""
    (found,) = regrets([sample()])

    assert found.chosen_seconds == found.best_seconds == pytest.approx(0.1 + 0.5 + 0.1 - 0.1 + 0.2 + 0.1 - 0.1)


def test_a_choice_that_another_would_have_beaten_is_regretted() -> None:
    """Computed where it takes 2 s, although the prefill node stood idle."""
    slow = replace(AS_EXPECTED, queue=0.0, prefill=2.0, exposed=0.0, transfer=0.0, start=2.0, total=2.2)
    (found,) = regrets([sample(chosen=LOCAL, measured=slow)])

    assert found.chosen_seconds == pytest.approx(2.2)
    assert found.best_seconds == pytest.approx(0.8)


def test_a_node_with_a_backlog_is_no_better_choice() -> None:
    """Ten prompts at once on the prefill node: the last would have been sooner on the decode node."""
    crowd = [sample(0.001 * number) for number in range(10)]

    last = regrets(crowd)[-1]

    assert last.chosen_seconds > 4.0
    assert last.best_seconds == pytest.approx(2.2)


def test_a_load_names_what_is_off() -> None:
    """Transfers that took six times their estimate."""
    slow = replace(AS_EXPECTED, transfer=2.4)
    report = LoadReport(0.3, 1.0, 4.0, 0.9, (sample(measured=slow), sample(9.0, measured=slow)), {})

    assert report.failures == ["transfer"]
    assert report.ttft_mean_seconds == pytest.approx(0.15)
    assert report.shares["pairs"] == {"p > d": 2}
    assert "HOST BUSY" in report.lines()[0]
    document = report.document()["samples"][0]
    assert document["chosen"] == 0
    assert document["candidates"][0] == ["d", "p", "", 0.1, 0.5, 0.4, 0.1, 0.0, 0.7, 0.02, 0.0]
    assert document["measured"] == [0.1, 0.5, 2.4, 0.1, 0.0, 0.7, 0.02, 0.6, 0.9]


def test_prompts_are_named_as_gateways_name_them() -> None:
    """Or nothing of them would be found in a cache."""
    tokens = tuple(range(3, 55))

    assert block_hashes("digest", 16, tokens) == join_hashes(own_hashes(root_hash("digest", 16), tokens, 16))
