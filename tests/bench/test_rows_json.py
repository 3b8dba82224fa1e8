"""Results on few lines."""

from __future__ import annotations

import json
from pathlib import Path

from bench.rows_json import write_rows_json


def test_rows_take_a_line_each_and_read_back(tmp_path: Path) -> None:
    """However many samples a row has."""
    rows = [{"samples": list(range(100))}, {"samples": []}]

    write_rows_json(tmp_path / "rows.json", {"format": "x/1"}, rows)

    text = (tmp_path / "rows.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"format": "x/1", "rows": rows}
    assert len(text.splitlines()) == 4
