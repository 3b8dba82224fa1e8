"""Draws bursts: per workload the first tokens as they came, and how the variants compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.prefix.burst import Row

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error

_LATENCIES = ("add_p50", "ttft_p50", "tpot_p50", "itl_p99", "e2e_p50")
_LABELS = ("add p50", "TTFT p50", "TPOT p50", "ITL p99", "latency p50")


def draw_burst(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: one line of panels per workload."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    figure = Figure(figsize=(14, 3.6 * len(workloads)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(workloads), 3, squeeze=False, width_ratios=(3, 3, 1))
    for line, workload in zip(panels, workloads, strict=True):
        chosen = [row for row in rows if row.workload == workload]
        _draw_first_tokens(line[0], chosen)
        _draw_latencies(line[1], chosen)
        _draw_throughput(line[2], chosen)
        line[0].set_ylabel(f"{workload}\nshare of first tokens")
    panels[0][0].legend()
    figure.suptitle("A burst of prompts: one after the other, in one pass, and with equal beginnings computed once")
    figure.savefig(path, dpi=100)


def _draw_first_tokens(axes: Any, rows: Sequence[Row]) -> None:
    """Draw the share of first tokens that have come after x, over all rounds."""
    for row in rows:
        ordered = sorted(1000 * sample.ttft_seconds for samples in row.rounds for sample in samples)
        shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
        axes.step([ordered[0], *ordered], [0.0, *shares], where="post", label=row.variant)
    axes.set(xlabel="time to first token (ms)", ylim=(0, 1.02))
    axes.set_xlim(left=0)


def _draw_latencies(axes: Any, rows: Sequence[Row]) -> None:
    width = 0.8 / len(rows)
    for number, row in enumerate(rows):
        medians = row.medians()
        places = [index + (number - (len(rows) - 1) / 2) * width for index in range(len(_LATENCIES))]
        bars = axes.bar(places, [1000 * medians[name] for name in _LATENCIES], width)
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(_LABELS)), _LABELS)
    axes.set_ylabel("ms, median of the rounds")


def _draw_throughput(axes: Any, rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows):
        axes.bar_label(axes.bar([number], [row.medians()["throughput"]], color=f"C{number}"), fmt="%.0f", fontsize=8)
    axes.set_xticks([])
    axes.set_ylabel("output tokens/s")
