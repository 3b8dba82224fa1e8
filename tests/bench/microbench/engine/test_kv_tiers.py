"""The bench of the prefix cache's tiers."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.engine.kv_cache.offload import Offload
from bench.engines.models import EIGHT_LAYERS, write_llama
from bench.microbench.engine.kv_tiers import TIERS, Row, draw_kv_tiers, measure, running_bench, speedup, table_of


def test_every_tier_gives_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All full blocks before the last token; nothing where the prompt is computed.

    Whether a copy is worth its time depends on the machine: here it always is.
    """
    for decision in ("_is_quicker", "_is_read_quicker"):
        monkeypatch.setattr(Offload, decision, lambda *_arguments, **_figures: True)
    write_llama(tmp_path, 2048, 4096, **{**EIGHT_LAYERS, "hidden_size": 96, "num_hidden_layers": 2})
    with running_bench(tmp_path) as bench:
        rows = measure(bench, [70], 1)

    assert {row.tier: row.num_cached_tokens for row in rows} == dict(zip(TIERS, ([64], [64], [64], [0]), strict=True))


def test_tiers_are_measured_and_drawn(tmp_path: Path) -> None:
    """Where a copy would take longer than the computation, the engine computes, as anywhere."""
    write_llama(tmp_path, 2048, 4096, **{**EIGHT_LAYERS, "hidden_size": 96, "num_hidden_layers": 2})
    with running_bench(tmp_path) as bench:
        rows = measure(bench, [70], 1)
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
