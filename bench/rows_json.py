"""Results as JSON that a person can look through and a diff can show: the head on one line, then one row per line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_rows_json(path: Path, head: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> None:
    """Write `{**head, "rows": rows}`."""
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    begin = json.dumps({**head, "rows": []}).removesuffix("]}")
    path.write_text(f"{begin}\n{lines}\n]}}\n", encoding="utf-8")
