"""The bench of the prefix cache's tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.engine.kv_cache.offload import Offload
from bench.engines.models import SMALL_SHAPE, write_small_model
from bench.kv.tiers import TIERS, Row, draw_kv_tiers, measure, speedup, table_of
from bench.microbench.engine import kv_tiers


def test_every_tier_gives_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All full blocks before the last token; nothing where the prompt is computed.

    Whether a copy is worth its time depends on the machine: here it always is.
    """
    for decision in ("_is_quicker", "_is_read_quicker"):
        monkeypatch.setattr(Offload, decision, lambda *_arguments, **_figures: True)
    write_small_model(tmp_path, SMALL_SHAPE)
    with kv_tiers.running_bench(tmp_path) as bench:
        rows = kv_tiers.measure(bench, [70], 1)

    assert {row.tier: row.num_cached_tokens for row in rows} == dict(zip(TIERS, ([64], [64], [64], [0]), strict=True))


@pytest.mark.usefixtures("children_here")
def test_tiers_are_measured_and_drawn(tmp_path: Path) -> None:
    """Where a copy would take longer than the computation, the engine computes, as anywhere."""
    rows = measure([70], 1, SMALL_SHAPE)
    draw_kv_tiers(rows, tmp_path / "plot.png")

    found = {row.tier: row.num_cached_tokens for row in rows}
    assert (found["device"], found["computed"]) == ([64], [0])
    assert {*found["host"], *found["disk"]} <= {0, 64}
    assert table_of(rows).row_count == len(TIERS)
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_the_speedup_is_the_median_of_the_rounds() -> None:
    """A slow round changes nothing."""
    rows = [Row(8, "host", [1.0, 100.0, 1.0], [8] * 3), Row(8, "computed", [3.0, 300.0, 4.0], [0] * 3)]

    assert speedup(rows, rows[0]) == 3.0
