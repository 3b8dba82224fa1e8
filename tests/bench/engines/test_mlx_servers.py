"""The arithmetic of bench.engines.mlx_servers."""

from __future__ import annotations

from bench.client.sample import RequestSample
from bench.engines.mlx_servers import SERVER_CASES, ServerCase, lengths_of, longest_gap, rate_of


def sample(sent: float, *moments: float) -> RequestSample:
    """Return a request that was sent and got tokens at these times."""
    return RequestSample(0, 0, sent, sent, moments[-1], moments, 4, 0, len(moments), len(moments))


def test_rate_counts_everything() -> None:
    """From the first request sent to the last token: 4 in 4 s."""
    assert rate_of([sample(0.5, 1.0, 2.0), sample(2.0, 3.0, 4.5)]) == 4 / 4.0


def test_longest_gap_is_within_a_request() -> None:
    """Times between tokens of different requests do not count; a token takes 2 s and 1 s on average."""
    assert longest_gap([sample(0, 1.0, 2.0, 5.0), sample(0, 50.0, 51.0, 52.0)]) == 3.0 / 1.5


def test_first_requests_end_one_after_the_other_where_others_join() -> None:
    """Nobody has fewer than 2 tokens; the 3 that join are as long as the longest."""
    assert lengths_of(ServerCase("joins", 4, 8, 3)) == [2, 4, 6, 8, 8, 8, 8]
    assert all(min(lengths_of(case)) >= 2 for case in SERVER_CASES)
