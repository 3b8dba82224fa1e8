"""The benchmark of the router's decisions: what it times, counts and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capacity.microbench import __main__ as microbench
from capacity.microbench.__main__ import Row


def test_decisions_reports_and_the_reference_are_timed() -> None:
    """Of unlike nodes under load and of equal ones."""
    for is_alike, cluster in ((False, "unlike, loaded"), (True, "equal, idle")):
        row = microbench.measure(4, 10, is_alike=is_alike)

        assert (row.num_nodes, row.cluster, len(row.decision_seconds)) == (4, cluster, 10)
        assert row.report_seconds
        assert min(row.reference_seconds) > 0


def test_the_table_and_the_file_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of unlike and of equal nodes."""
    rows = {nodes: Row(nodes, "unlike, loaded", [0.001] * 98 + [0.002] * 2, [1e-5], [0.1]) for nodes in (2, 16)}
    monkeypatch.setattr(microbench, "measure", lambda num_nodes, *_arguments, **_named: rows[num_nodes])
    out = tmp_path / "placement.json"

    assert microbench.main(["--nodes", "2", "16", "--out", str(out)]) == 0

    assert [row["num_nodes"] for row in json.loads(out.read_text())["rows"]] == [2, 16, 2, 16]
    printed = capsys.readouterr().out
    assert "1.000" in printed
    assert "2.000" in printed
