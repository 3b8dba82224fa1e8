"""Bursts: what is asked, and how the variants are compared."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench.client.sample import RequestSample
from bench.prefix.burst import VARIANTS, Row, draw_burst, prompts_of, ratios, table_of

OPTIONS = argparse.Namespace(
    seed=1, token_ids=(3, 90), requests=8, prompt_tokens=6, shared_tokens=20, output_tokens=4, copies=4
)


def rows_of(ttft_seconds: dict[str, list[float]]) -> list[Row]:
    """Return a row per variant: in each round two requests of this time to first token and a second more."""
    return [
        Row("unique", variant, [[sample_of(seconds), sample_of(seconds)] for seconds in ttft_seconds[variant]])
        for variant in VARIANTS
    ]


def sample_of(ttft_seconds: float) -> RequestSample:
    """Return a request of two tokens, a second apart."""
    times = (ttft_seconds, ttft_seconds + 1)
    return RequestSample(0, 0, 0.0, 0.0, times[-1], times, 6, 0, 2, 2, add_seconds=ttft_seconds / 2)


@pytest.mark.parametrize(("workload", "num_different"), [("unique", 8), ("copies", 2), ("beginnings", 8)])
def test_a_workload_has_in_common_what_it_says(workload: str, num_different: int) -> None:
    """Copies come after all others; beginnings have a length of their own."""
    prompts = [session.turns[0].prompt for session in prompts_of(workload, OPTIONS, "0")]

    assert len(prompts) == 8
    assert len(set(prompts)) == num_different
    assert len(set(prompts[:num_different])) == num_different
    assert len({prompt[:20] for prompt in prompts}) == (1 if workload == "beginnings" else num_different)


def test_no_round_repeats_a_prompt_of_another() -> None:
    """It would be found in the prefix cache."""
    first, second = (
        {session.turns[0].prompt for session in prompts_of("unique", OPTIONS, number)} for number in ("0", "1")
    )

    assert not first & second


def test_variants_are_compared_within_a_round() -> None:
    """A round in which the machine was slow for all says the same as others: the median of ratios, not their ratio."""
    rows = rows_of(
        {
            "serial misses": [2.0, 20.0, 3.0],
            "batched misses": [1.0, 10.0, 1.5],
            "batched + dedup": [0.5, 5.0, 1.0],
        }
    )

    assert [ratios(rows, row)["ttft_p50"] for row in rows] == [1.0, 2.0, 4.0]
    assert ratios(rows, rows[1])["throughput"] == pytest.approx(4 / 2.5)


def test_a_burst_is_shown_as_a_table_and_as_a_picture(tmp_path: Path) -> None:
    """A line per row, medians in milliseconds."""
    rows = rows_of({variant: [0.5, 0.7, 0.9] for variant in VARIANTS})

    table = table_of(rows)
    draw_burst(rows, tmp_path / "burst.png")

    assert table.row_count == 3
    assert list(table.columns[3].cells) == ["700"] * 3
    assert (tmp_path / "burst.png").read_bytes().startswith(b"\x89PNG")
