"""Numbers and picture of generating beside KV that arrives."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from bench.kv.ingest import Round, Row, draw_ingest

ROW = Row("mock", 10.0, 2, (Round((0.02,) * 8, (0.02,) * 4 + (0.02, 0.02, 0.02, 0.06), (0.5, 1.5), 10**9),))


def test_tpot_is_of_requests_and_itl_of_gaps() -> None:
    """A request with one gap three times as long has a TPOT of half more, by the mean of its four gaps."""
    assert ROW.ratio("tpot", 100) == pytest.approx(1.5)
    assert ROW.ratio("itl", 100) == pytest.approx(3.0)
    assert ROW.ratio("itl", 50) == pytest.approx(1.0)


def test_the_rate_is_over_the_time_of_the_prompts_that_brought_it() -> None:
    """1 GB in two prompts of 2 seconds together."""
    assert ROW.summary()["gigabytes_per_second"] == pytest.approx(0.5)
    assert ROW.arrival_seconds == pytest.approx(1.0)


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    """One panel per pair and link."""
    draw_ingest([ROW], tmp_path / "ingest.png")
    assert (tmp_path / "ingest.png").read_bytes().startswith(b"\x89PNG")
