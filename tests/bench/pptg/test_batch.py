"""Rates of batches, against answers computed by hand."""

from __future__ import annotations

import pytest

from bench.client.completion import Answer
from bench.pptg.batch import Batch, BatchRequest, GenerationStats, client_stats, server_stats


def stats(generation_tps: float) -> GenerationStats:
    """Return a server's rates."""
    return GenerationStats("server", 100.0, generation_tps, 10, 5, 0, "none")


def request(elapsed_seconds: float, generation_tps: float) -> BatchRequest:
    """Return a request of 10 prompt tokens and 5 output tokens."""
    return BatchRequest(0.1, elapsed_seconds, 10, 0, 5, stats(generation_tps), "")


def test_the_aggregates_of_a_server_that_runs_one_after_another_differ_by_the_number_of_requests() -> None:
    """Each of 4 runs alone at 50 tokens/s; exo's figure says 200, what came by the time it took says 50."""
    batch = Batch(0.0, tuple(request(0.1 * (index + 1), 50.0) for index in range(4)))

    assert batch.exo_aggregate_tps == 200.0
    assert batch.output_tps == pytest.approx(20 / 0.4)
    assert batch.total_tps == pytest.approx(60 / 0.4)
    assert batch.wall_seconds == pytest.approx(0.4)


def test_a_client_counts_uncached_tokens_to_the_first_and_gaps_after_it() -> None:
    """prompt_tps is (prompt - cached) / TTFT, generation_tps is (n - 1) / span."""
    answer = Answer(token_seconds=[2.0, 2.5, 4.0], num_prompt_tokens=100, num_cached_tokens=64, num_completion_tokens=5)

    rates = client_stats(answer, ttft_seconds=0.5)

    assert rates.source == "client"
    assert rates.prompt_tps == pytest.approx(36 / 0.5)
    assert rates.generation_tps == pytest.approx(4 / 2.0)
    assert rates.prefix_cache_hit == "partial"


def test_one_token_has_no_generation_rate() -> None:
    """0, not infinite."""
    assert (
        client_stats(Answer(token_seconds=[2.0], num_prompt_tokens=9, num_completion_tokens=1), 0.5).generation_tps == 0
    )


def test_a_servers_rates_are_taken_as_they_are() -> None:
    """With exo's names."""
    rates = server_stats(
        {
            "prompt_tps": 5.0,
            "generation_tps": 7.0,
            "prompt_tokens": 3,
            "generation_tokens": 2,
            "peak_memory_usage": {"inBytes": 9},
        }
    )

    assert (rates.source, rates.generation_tps, rates.peak_memory_bytes) == ("server", 7.0, 9)
    assert rates.prefix_cache_hit == "none"
