"""The bench of the prefix cache's tiers."""

from __future__ import annotations

from pathlib import Path

from bench.engines.small_model import SMALL_SHAPE
from bench.kv_tiers import TIERS, Row, measure, speedup, table_of
from bench.kv_tiers_plot import draw_kv_tiers


def test_every_tier_gives_what_it_holds_and_is_compared_in_its_round(tmp_path: Path) -> None:
    """All full blocks before the last token; nothing where the prompt is computed."""
    rows = measure([70], 1, SMALL_SHAPE)
    draw_kv_tiers(rows, tmp_path / "plot.png")

    assert {row.tier: row.num_cached_tokens for row in rows} == dict(zip(TIERS, ([64], [64], [64], [0]), strict=True))
    assert table_of(rows).row_count == len(TIERS)
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_the_speedup_is_the_median_of_the_rounds() -> None:
    """A slow round changes nothing."""
    rows = [Row(8, "host", [1.0, 100.0, 1.0], [8] * 3), Row(8, "computed", [3.0, 300.0, 4.0], [0] * 3)]

    assert speedup(rows, rows[0]) == 3.0
