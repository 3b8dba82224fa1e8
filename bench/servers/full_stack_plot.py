"""Draws whole servers beside each other: tokens per second, and times to the first and per further token."""

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
_PARTS = (
    ("output_tokens_per_second", "output tokens/s", 1.0),
    ("ttft_p50", "time to first token, p50, s", 1.0),
    ("tpot_p50", "time per output token, p50, ms", 1e3),
)


def draw_full_stack(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw a group of bars per shape and a bar per server, for each number."""
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    servers = list(dict.fromkeys(row["server"] for row in rows))
    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, title, factor) in zip(figure.subplots(1, len(_PARTS)), _PARTS, strict=True):
        for number, server in enumerate(servers):
            found = {row["shape"]: factor * row[name] for row in rows if row["server"] == server}
            places = [index + 0.8 * (number + 0.5) / len(servers) - 0.4 for index in range(len(shapes))]
            bars = axes.bar(places, [found.get(shape, 0.0) for shape in shapes], 0.8 / len(servers), label=server)
            axes.bar_label(bars, fmt="%.3g", fontsize=6)
        axes.set_xticks(range(len(shapes)), shapes, fontsize=8)
        axes.set_title(title, fontsize=9)
        axes.grid(axis="y", alpha=0.3)
    figure.axes[0].legend(fontsize=7)
    figure.savefig(path, dpi=_DOTS_PER_INCH)
