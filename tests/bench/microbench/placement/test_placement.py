"""The benchmark of the router's decisions: what it times, counts and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from baton.capacity.placement import Decision
from bench.microbench.placement import __main__ as microbench
from bench.microbench.placement.__main__ import Equality, Row


def test_decisions_reports_and_the_reference_are_timed() -> None:
    """Of unlike nodes under load and of equal ones."""
    for is_alike, cluster in ((False, "unlike, loaded"), (True, "equal, idle")):
        row = microbench.measure(4, 10, is_alike=is_alike)

        assert (row.num_nodes, row.cluster, len(row.decision_seconds)) == (4, cluster, 10)
        assert row.report_seconds
        assert min(row.reference_seconds) > 0


def test_a_decision_that_differs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that finds nothing differs wherever the search finds something."""
    assert microbench.compare(20).num_different == 0
    monkeypatch.setattr(microbench, "place", lambda *_arguments, **_named: Decision(()))

    equality = microbench.compare(20)

    assert 0 < equality.num_different <= 20
    assert equality.first_different_seed is not None
    assert equality.kinds == {"none": 20}


@pytest.mark.parametrize("num_different", [0, 3])
def test_the_status_tells_whether_any_decision_differs(
    num_different: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table, the file and the picture are there in any case."""
    rows = {nodes: Row(nodes, "unlike, loaded", [0.001] * 99 + [0.002], [1e-5], [0.1]) for nodes in (2, 16)}
    equality = Equality(20, num_different, None, {"local": 20})
    monkeypatch.setattr(microbench, "measure", lambda num_nodes, *_arguments, **_named: rows[num_nodes])
    monkeypatch.setattr(microbench, "compare", lambda *_arguments: equality)
    out, plot = tmp_path / "placement.json", tmp_path / "placement.png"

    assert microbench.main(["--nodes", "2", "16", "--out", str(out), "--plot", str(plot)]) == (
        1 if num_different else 0
    )

    results = json.loads(out.read_text())
    assert [row["num_nodes"] for row in results["rows"]] == [2, 16, 2, 16]
    assert results["equality"]["num_different"] == num_different
    assert plot.stat().st_size
    printed = capsys.readouterr().out
    assert f"20 random clusters: {num_different} decisions differ" in printed
    assert "1.000" in printed
    assert "2.000" in printed
