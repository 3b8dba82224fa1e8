"""What `baton chat` says below an answer."""

from __future__ import annotations

import pytest

from baton.cli.answer import Answer, hidden_share, placement_lines
from baton.cli.completion_stream import StreamPiece


def test_speed_is_counted_from_the_first_token() -> None:
    """TTFT from the question; tokens/s over the tokens after the first."""
    answer = Answer(10.0)
    for now_seconds, text in ((10.2, ""), (10.5, "a"), (11.5, "b")):
        answer.add(StreamPiece(text), now_seconds)
    answer.add(StreamPiece("", {"completion_tokens": 11}), 11.6)

    assert answer.text == "ab"
    assert answer.summary_lines() == ["TTFT 500 ms · 11 tokens · 10.0 tokens/s"]


def test_the_decode_node_knows_the_rate_best() -> None:
    """Pieces that arrive in one burst do not make the model look fast."""
    answer = Answer(0.0)
    for now_seconds in (1.0, 1.001):
        answer.add(StreamPiece("a"), now_seconds)
    answer.add(StreamPiece("", {"completion_tokens": 11}, {"decode_node": "d", "decode_seconds": 2.0}), 1.002)

    assert answer.summary_lines()[0] == "TTFT 1 s · 11 tokens · 5.0 tokens/s"


def test_an_answer_without_text_says_so() -> None:
    """Nothing is divided by zero."""
    assert Answer(0.0).summary_lines() == ["no text"]


def test_a_streamed_prefill_shows_nodes_bytes_and_the_hidden_share() -> None:
    """Two lines: where, and what the transfer cost."""
    lines = placement_lines(
        {
            "prefill_node": "prefill-torch",
            "decode_node": "decode-mlx",
            "kv_bytes": 1_070_000,
            "transfer_seconds": 0.2,
            "exposed_seconds": 0.05,
            "decode_cached_tokens": 0,
            "prefill_cached_tokens": 32,
            "fallback_reason": "",
        }
    )

    assert lines == [
        "prefill on prefill-torch → decode on decode-mlx, 32 tokens cached",
        "KV 1.07 MB in 200 ms, 75% hidden behind computation",
    ]


def test_a_transfer_that_seems_to_take_no_time_is_not_said_to() -> None:
    """The two nodes' clocks agree within half a round trip: a frame may seem to arrive before it was ready."""
    places = {"prefill_node": "p", "decode_node": "d", "kv_bytes": 12_300, "transfer_seconds": 0.0}

    assert placement_lines(places)[1] == "KV 12.3 kB faster than can be measured"


def test_a_local_prefill_is_one_line() -> None:
    """Nothing was sent."""
    assert placement_lines({"prefill_node": "d", "decode_node": "d"}) == ["prefill and decode on d"]


def test_a_pull_shows_from_where_and_how_long() -> None:
    """A second line."""
    places = {"prefill_node": "d", "decode_node": "d", "decode_cached_tokens": 16}
    pull = {"pull_node": "e", "pulled_tokens": 640, "pull_seconds": 0.25, "kv_bytes": 84_000_000}

    lines = placement_lines(places | pull)

    assert lines == [
        "prefill and decode on d, 16 tokens cached",
        "640 tokens from the cache of e, KV 84 MB in 250 ms",
    ]


def test_a_fallback_is_not_hidden() -> None:
    """The reason is shown."""
    (line,) = placement_lines({"prefill_node": "d", "decode_node": "d", "fallback_reason": "UNAVAILABLE"})

    assert "after a fallback: UNAVAILABLE" in line


@pytest.mark.parametrize(("transfer", "exposed", "share"), [(0, 0, 1), (1, 0, 1), (1, 1, 0), (1, 2, 0), (4, 1, 0.75)])
def test_the_hidden_share_is_between_0_and_1(transfer: float, exposed: float, share: float) -> None:
    """1 - exposed / transfer, clipped."""
    assert hidden_share(transfer, exposed) == share
