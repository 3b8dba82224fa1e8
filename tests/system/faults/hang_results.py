"""What the suite of hangs measured: bench/results/hangs.json, and a table of it for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.results_file import describe_machine, write_results
from system.faults.near_ties import TIE

_PATH = Path(__file__).parents[3] / "bench/results/hangs.json"
_COLUMNS = {
    "errors": "errors",
    "lost": "lost",
    "wrong": "wrong",
    "tied": "tied",
    "doubled": "doubled",
    "detected_seconds": "detected, s",
    "replay_seconds": "replay, s",
    "predicted_replay_seconds": "predicted, s",
    "worst_gap_seconds": "worst gap, s",
    "late_seconds": "new requests beyond the prediction, s",
    "freed_seconds": "freed, s",
    "verdicts": "verdicts",
}
_ABOUT = f"""\
A stream of torch that is not the undisturbed one is right, and tied, if each of its tokens is the best of float64's
logits after what comes before it there, or within {TIE:g} of it (`tests/system/faults/near_ties.py`): float32 moves the
distance of two by up to 1e-4 with the batch and with what is computed at once.

A row is the last run of its cell. At 2ff307c8 "router killed, mock" ran four times: in one of twelve rounds a new
request came 0.41 s later than predicted, 0.24 s at most in the others. "index killed, torch" ran twice: in two of six
rounds, at a load of 9, nodes were taken for gone after 0.8 and 2.2 s; no token was lost, the worst gap was 1.4 s.
"""


def keep(cell: str, rows: Sequence[Mapping[str, float]], *, has_passed: bool) -> None:
    """Put a cell's rounds into the file, in place of what was there of it."""
    machine = describe_machine()
    known: Mapping[str, Any] = json.loads(_PATH.read_text("utf-8")) if _PATH.exists() else {}
    about = {key: machine[key] for key in ("time", "commit", "is_modified", "load_average")}
    cells = {**known.get("cells", {}), cell: {**about, "passed": has_passed, "rounds": list(rows)}}
    cells = dict(sorted(cells.items()))
    write_results(_PATH, {"machine": {key: machine[key] for key in ("platform", "processor", "cores")}, "cells": cells})
    _PATH.with_suffix(".md").write_text(_table(cells), "utf-8")


def _table(cells: Mapping[str, Any]) -> str:
    lines = [
        _ABOUT,
        f"| cell | passed | {' | '.join(_COLUMNS.values())} | load | commit |",
        "|---|---|" + "---:|" * (len(_COLUMNS) + 2),
    ]
    for name, cell in cells.items():
        worst = [max(row.get(key, 0.0) for row in cell["rounds"]) for key in _COLUMNS]
        shown = " | ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in worst)
        passed, load = "yes" if cell["passed"] else "no", cell["load_average"][0]
        lines.append(f"| {name} | {passed} | {shown} | {load:.0f} | {cell['commit'][:7]} |")
    return "\n".join([*lines, ""])
