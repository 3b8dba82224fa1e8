"""Metrics against samples computed by hand."""

from __future__ import annotations

import pytest

from bench.client.metrics import ServiceLevel, distribution, in_flight, summarize
from tests.bench.samples import sample


def test_latencies_of_one_request_follow_their_formulas() -> None:
    """TTFT is to the first event, TPOT over n - 1 tokens, ITL per gap, end-to-end to the end of the answer."""
    request = sample(1.5, 2.0, 3.0, sent=1.0, finished=3.25, completion_tokens=6)

    assert request.ttft_seconds == 0.5
    assert request.tpot_seconds == pytest.approx(1.5 / 5)
    assert request.itl_seconds == [0.5, 1.0]
    assert request.e2e_seconds == 2.25


def test_one_token_has_no_time_per_output_token() -> None:
    """There is nothing after the first token to measure."""
    assert sample(1.0).tpot_seconds is None


def test_rates_are_over_the_window_from_first_sent_to_last_finished() -> None:
    """Tokens and requests divide by the run's duration, not by the sum of latencies."""
    summary = summarize([sample(2.0, 3.0, sent=1.0), sample(4.0, 5.0, 6.0, sent=2.0, prompt_tokens=15)])

    assert summary.duration_seconds == 5.0
    assert summary.requests_per_second == pytest.approx(2 / 5)
    assert summary.output_tokens_per_second == pytest.approx(5 / 5)
    assert summary.total_tokens_per_second == pytest.approx(30 / 5)
    assert summary.max_in_flight == 2


def test_failed_requests_lengthen_the_run_but_bring_nothing() -> None:
    """A failed request counts as failed and for the duration; its tokens and latencies do not count."""
    summary = summarize([sample(1.0, 2.0), sample(1.0, finished=10.0, error="broken")])

    assert (summary.num_requests, summary.num_failed) == (2, 1)
    assert summary.duration_seconds == 10.0
    assert summary.completion_tokens == 2
    assert summary.ttft_seconds is not None
    assert summary.ttft_seconds.count == 1


def test_goodput_counts_requests_that_keep_every_bound() -> None:
    """One request breaks TTFT, one TPOT, one fails, one is good."""
    level = ServiceLevel(ttft_seconds=1.0, tpot_seconds=0.5)
    samples = [sample(1.0, 1.5), sample(1.1, 1.2), sample(0.5, 2.0), sample(0.1, finished=2.0, error="broken")]

    summary = summarize(samples, level)

    assert summary.good_requests_per_second == pytest.approx(1 / 2.0)
    assert summary.good_share == 0.25


def test_a_request_that_ended_early_is_short() -> None:
    """Fewer tokens than asked for are counted apart."""
    assert summarize([sample(1.0, max_tokens=2), sample(1.0)]).num_short == 1


def test_lateness_is_sending_behind_schedule() -> None:
    """The wait in the client is no latency of the server."""
    summary = summarize([sample(3.0, sent=2.0, scheduled=0.5)])

    assert summary.lateness_seconds is not None
    assert summary.lateness_seconds.mean == 1.5
    assert summary.ttft_seconds is not None
    assert summary.ttft_seconds.mean == 1.0


def test_percentiles_lie_between_the_nearest_ranks() -> None:
    """In proportion: of five values rank 0.9 * 4 = 3.6 is 0.6 of the way from the fourth to the fifth."""
    found = distribution([5.0, 1.0, 3.0, 2.0, 14.0])

    assert found is not None
    assert (found.p50, found.max, found.mean) == (3.0, 14.0, 5.0)
    assert [found.p90, found.p95, found.p99] == pytest.approx([10.4, 12.2, 13.64])


def test_a_distribution_of_nothing_is_none() -> None:
    """No value, no percentile."""
    assert distribution([]) is None


def test_an_end_comes_before_a_beginning_at_the_same_time() -> None:
    """Requests that follow each other without a gap are never two in flight."""
    steps = in_flight([sample(1.0, sent=0.0), sample(2.0, sent=1.0)])

    assert max(count for _, count in steps) == 1
    assert steps[-1] == (2.0, 0)


def test_a_run_without_requests_is_refused() -> None:
    """There is nothing to compute."""
    with pytest.raises(ValueError, match="without requests"):
        summarize([])
