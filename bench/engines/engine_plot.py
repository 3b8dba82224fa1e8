"""Draws engines side by side: tokens per CPU-second in each case, and the best that the core could do."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.engines.case import CASES
from bench.engines.engine import SYSTEMS, Row

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error


def draw_engines(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: a line of panels per dtype, a panel per case that was measured."""
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    cases = [case for case in CASES if any(row.case == case.name for row in rows)]
    figure = Figure(figsize=(14, 3.4 * len(dtypes)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(dtypes), len(cases), squeeze=False)
    for line, dtype in zip(panels, dtypes, strict=True):
        for axes, case in zip(line, cases, strict=True):
            _draw_case(axes, [row for row in rows if (row.dtype, row.case) == (dtype, case.name)])
            axes.set_title(case.name)
        line[0].set_ylabel(f"{dtype}\ntokens per CPU-second")
    figure.suptitle("One thread, 135M Llama shape; dashed: what the core could do at best")
    figure.savefig(path, dpi=100)


def _draw_case(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        place = SYSTEMS.index(row.system)
        rates = row.rates()
        middle = statistics.median(rates)
        spread = [[middle - min(rates)], [max(rates) - middle]]
        bars = axes.bar([place], [middle], yerr=spread, capsize=3, color=f"C{place}")
        axes.bar_label(bars, fmt="%.0f" if middle >= 100 else "%.1f", fontsize=8, label_type="center", color="white")
    for row in rows[:1]:
        axes.axhline(statistics.median(row.roofline), linestyle="--", color="black", linewidth=1)
    axes.set_xticks(range(len(SYSTEMS)), SYSTEMS, rotation=30, ha="right", fontsize=7)
