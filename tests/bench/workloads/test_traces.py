"""Traces: read as recorded, scaled, with real shared prefixes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.workloads.dataset import TokenIds
from bench.workloads.traces import Scaling, TraceRow, read_azure, read_mooncake, replay

IDS = TokenIds(3, 90)


def test_a_mooncake_trace_has_seconds_lengths_and_blocks(tmp_path: Path) -> None:
    """Timestamps are milliseconds in the file."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 1500, "input_length": 700, "output_length": 20, "hash_ids": [0, 7]}\n')

    assert list(read_mooncake(path)) == [TraceRow(1.5, 700, 20, (0, 7))]


def test_an_azure_trace_begins_at_zero(tmp_path: Path) -> None:
    """Times of day with seven decimals become seconds after the first request."""
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )

    first, second = read_azure(path)

    assert first == TraceRow(0.0, 374, 44)
    assert second.arrival_seconds == pytest.approx(4.314579)


def test_equal_blocks_become_equal_tokens() -> None:
    """Prompts share exactly the blocks that the trace says they share."""
    rows = [TraceRow(0, 1300, 5, (0, 1, 2)), TraceRow(1, 1200, 5, (0, 1, 3))]

    first, second = (session.turns[0].prompt for session in replay(rows, IDS, 1, 2))

    assert (len(first), len(second)) == (1300, 1200)
    assert first[:1024] == second[:1024]
    assert first[1024:1200] != second[1024:]


def test_scaled_prompts_keep_their_shared_share() -> None:
    """Blocks shrink with the prompts."""
    rows = [TraceRow(0, 1300, 50, (0, 1, 2)), TraceRow(1, 1200, 50, (0, 1, 3))]

    first, second = replay(rows, IDS, 1, 2, Scaling(length_factor=0.125))

    assert len(first.turns[0].prompt) == 162
    assert first.turns[0].max_tokens == 6
    assert first.turns[0].prompt[:128] == second.turns[0].prompt[:128]


def test_requests_that_do_not_fit_are_left_out() -> None:
    """The count is of those kept, and they keep their times."""
    rows = [TraceRow(0, 100, 5), TraceRow(1, 10, 5), TraceRow(2, 20, 5), TraceRow(3, 20, 5)]

    sessions = replay(rows, IDS, 1, 2, Scaling(max_context_tokens=30))

    assert [session.arrival_seconds for session in sessions] == [1, 2]


def test_prompts_without_blocks_share_nothing() -> None:
    """Each request draws from a seed of its own."""
    first, second = replay([TraceRow(0, 64, 5), TraceRow(0, 64, 5)], IDS, 1, 2)

    assert first.turns[0].prompt[:8] != second.turns[0].prompt[:8]
