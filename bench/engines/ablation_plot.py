"""Draws what an engine loses without each lesson: throughput, and the host's time per pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.engines.ablation import VARIANTS, Row, ratio

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error


def draw_ablation(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: a line of panels per metric, a panel per case."""
    cases = list(dict.fromkeys(row.case for row in rows))
    figure = Figure(figsize=(3.4 * len(cases), 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(cases), squeeze=False)
    for column, case in enumerate(cases):
        chosen = [row for row in rows if row.case == case]
        for axes, metric in zip(panels[:, column], ("tokens_per_second", "host_seconds"), strict=True):
            values = [ratio(rows, row, metric) for row in chosen]
            bars = axes.bar(range(len(chosen)), values, color=[f"C{VARIANTS.index(row.variant)}" for row in chosen])
            axes.bar_label(bars, fmt="%.2f", fontsize=8)
            axes.axhline(1.0, linestyle="--", color="black", linewidth=1)
            axes.set_xticks(range(len(chosen)), [row.variant for row in chosen], rotation=40, ha="right", fontsize=7)
        panels[0, column].set_title(case, fontsize=9)
    panels[0, 0].set_ylabel("tokens/s, times that of all lessons")
    panels[1, 0].set_ylabel("host time per pass, times that of all")
    figure.suptitle("Lessons of the asynchronous core: all on, each off by itself, all off")
    figure.savefig(path, dpi=100)
