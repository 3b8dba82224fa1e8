"""Draws decoding on MLX: tokens per CPU-second of both systems in each case."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.mlx_decode import BATON, CASES, MLX_LM, rates

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error


def draw(samples: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a PNG: a panel per case, the median of the rounds and their spread."""
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(CASES), squeeze=False)[0]
    for axes, case in zip(panels, CASES, strict=True):
        for place, system in enumerate((BATON, MLX_LM)):
            values = rates(samples, case.name, system)
            middle = statistics.median(values)
            spread = [[middle - min(values)], [max(values) - middle]]
            bars = axes.bar([place], [middle], yerr=spread, capsize=3, color=f"C{place}")
            axes.bar_label(bars, fmt="%.1f", fontsize=8, label_type="center", color="white")
        axes.set_xticks(range(2), (BATON, MLX_LM))
        axes.set_title("8 at once, 12 join and leave" if case.num_joins else f"{case.size} at once")
    panels[0].set_ylabel("tokens per CPU-second")
    figure.suptitle("Decoding on MLX (CPU, float32, one thread), 135M Llama shape, context 512")
    figure.savefig(path, dpi=100)
