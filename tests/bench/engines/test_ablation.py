"""The ablation compares every variant with the whole, in its own round."""

from __future__ import annotations

import json
from pathlib import Path

from bench.engines.ablation import METRICS, VARIANTS, Row, ratio, rows_of, table_of
from bench.engines.ablation_plot import draw_ablation


def lines_of(*host_seconds: float) -> list[str]:
    """Return what the gauge prints: variant after variant, round after round; the first one has `host_seconds`."""
    return [
        json.dumps({"variant": variant, **dict.fromkeys(METRICS, seconds * (1 + index))})
        for seconds in host_seconds
        for index, variant in enumerate(VARIANTS)
    ]


def test_rounds_are_told_apart() -> None:
    """A row has one sample per round and metric."""
    rows = rows_of("case", lines_of(1.0, 10.0))

    assert [row.variant for row in rows] == list(VARIANTS)
    assert rows[1].samples["host_seconds"] == [2.0, 20.0]


def test_the_ratio_is_taken_within_a_round() -> None:
    """A round in which all was slow changes no ratio."""
    rows = rows_of("other", lines_of(7.0)) + rows_of("case", lines_of(1.0, 100.0, 1.0))

    assert ratio(rows, rows[-1], "host_seconds") == len(VARIANTS)


def test_table_and_picture_show_every_variant(tmp_path: Path) -> None:
    """A line of the table each."""
    rows: list[Row] = rows_of("case", lines_of(1.0, 2.0))
    draw_ablation(rows, tmp_path / "plot.png")

    assert table_of(rows).row_count == len(VARIANTS)
    assert (tmp_path / "plot.png").stat().st_size > 1000
