"""Draws decoding on MLX: engines by tokens per CPU-second, servers by tokens per second."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.engines.mlx_decode import BATON, CASES, MLX_LM, rates, server_rates
from bench.engines.mlx_servers import MLX_LM_SERVER

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error


def draw(samples: Sequence[dict[str, Any]], asked: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a PNG: a panel per case, the median of the rounds and their spread; servers, if any, below engines."""
    num_lines = 2 if asked else 1
    figure = Figure(figsize=(11, 3.4 * num_lines), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(num_lines, len(CASES), squeeze=False)
    for place, case in enumerate(CASES):
        title = "8 at once, 12 join and leave" if case.num_joins else f"{case.size} at once"
        _draw_pair(panels[0][place], title, {name: rates(samples, case.name, name) for name in (BATON, MLX_LM)})
        if asked:
            pair = {name: server_rates(asked, case.name, name) for name in (BATON, MLX_LM_SERVER)}
            _draw_pair(panels[1][place], title, pair)
    panels[0][0].set_ylabel("engine: tokens per CPU-second")
    if asked:
        panels[1][0].set_ylabel("HTTP to HTTP: tokens/s")
    figure.suptitle("Decoding on MLX (CPU, float32, one thread), 135M Llama shape, context 512; over HTTP from 16")
    figure.savefig(path, dpi=100)


def _draw_pair(axes: Any, title: str, pair: dict[str, list[float]]) -> None:
    for place, values in enumerate(pair.values()):
        middle = statistics.median(values)
        spread = [[middle - min(values)], [max(values) - middle]]
        bars = axes.bar([place], [middle], yerr=spread, capsize=3, color=f"C{place}")
        axes.bar_label(bars, fmt="%.1f", fontsize=8, label_type="center", color="white")
    axes.set_xticks(range(len(pair)), list(pair), fontsize=8)
    axes.set_title(title)
