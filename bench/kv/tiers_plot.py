"""Draws the time to the first token by where the prompt's KV was."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from bench.kv.tiers import TIERS, Row, speedup

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error


def draw_kv_tiers(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: a group of bars per length, each with its range over the rounds."""
    lengths = sorted({row.num_tokens for row in rows})
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, tier in enumerate(TIERS):
        chosen = [row for length in lengths for row in rows if (row.num_tokens, row.tier) == (length, tier)]
        medians = [1000 * statistics.median(row.ttft_seconds) for row in chosen]
        low = [median - 1000 * min(row.ttft_seconds) for median, row in zip(medians, chosen, strict=True)]
        high = [1000 * max(row.ttft_seconds) - median for median, row in zip(medians, chosen, strict=True)]
        places = [group + 0.2 * (index - 1.5) for group in range(len(lengths))]
        bars = axes.bar(places, medians, 0.19, yerr=[low, high], label=tier, color=f"C{index}", capsize=2)
        axes.bar_label(bars, [f"x{speedup(rows, row):.1f}" for row in chosen], fontsize=8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("time to first token, ms")
    axes.legend(title="KV from", fontsize=8)
    axes.set_title("Prefix cache tiers: times sooner than computed, one CPU thread", fontsize=10)
    figure.savefig(path, dpi=100)
