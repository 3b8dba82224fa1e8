"""Draws the hand-over across shaped links: time until decoding can begin, by prompt length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error

_DOTS_PER_INCH = 110
_LINES = (
    ("blob_seconds", "sent when all is computed", {"linestyle": "--", "marker": ".", "color": "C3"}),
    ("start_seconds", "streamed by layers, measured", {"linestyle": "-", "marker": "o", "color": "C0"}),
    ("bound_seconds", "max(compute, wire) + one group", {"linestyle": ":", "color": "0.2"}),
)


def draw_shaped(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a grid: a row per pair of nodes, a column per link."""
    pairs = list(dict.fromkeys(row["pair"] for row in rows))
    rates = list(dict.fromkeys(row["link_bits_per_second"] for row in rows))
    figure = Figure(figsize=(4 * len(rates), 3.4 * len(pairs)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(pairs), len(rates), squeeze=False)
    for axes_row, pair in zip(grid, pairs, strict=True):
        for axes, rate in zip(axes_row, rates, strict=True):
            chosen = [row for row in rows if (row["pair"], row["link_bits_per_second"]) == (pair, rate)]
            _draw_link(axes, chosen, f"{pair}\n{rate / 1e9:g} Gb/s")
    grid[0][0].legend(fontsize=8)
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _draw_link(axes: Any, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    lengths = [row["num_prompt_tokens"] for row in rows]
    for name, label, style in _LINES:
        axes.plot(lengths, [row[name] for row in rows], label=label, **style)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("prompt, tokens")
    axes.set_ylabel("until decoding begins, s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
