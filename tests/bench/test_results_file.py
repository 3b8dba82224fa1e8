"""Results on few lines."""

from __future__ import annotations

import json
from pathlib import Path

from bench.results_file import write_results


def test_rows_take_a_line_each_and_read_back(tmp_path: Path) -> None:
    """However many samples a row has."""
    results = {"format": "x/1", "rows": [{"samples": list(range(100))}, {"samples": []}]}

    write_results(tmp_path / "rows.json", results)

    text = (tmp_path / "rows.json").read_text(encoding="utf-8")
    assert json.loads(text) == results
    assert len(text.splitlines()) == 7


def test_entries_take_a_line_each_where_one_is_too_short(tmp_path: Path) -> None:
    """Settings stay on their line, a table by name does not."""
    results = {"settings": {"rounds": 3}, "models": {name: [0.5] * 20 for name in "ab"}}

    write_results(tmp_path / "models.json", results)

    text = (tmp_path / "models.json").read_text(encoding="utf-8")
    assert json.loads(text) == results
    assert [line.strip()[:10] for line in text.splitlines()] == [
        "{",
        '"settings"',
        '"models": ',
        '"a": [0.5,',
        '"b": [0.5,',
        "}",
        "}",
    ]
