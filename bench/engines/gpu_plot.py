"""Draws what was measured on a GPU: shares of what the device could do, and whole batches side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.engines.gpu import Finding

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error


def draw_findings(findings: Sequence[Finding], path: Path) -> None:
    """Write a PNG: shares of the best on the left, tokens per second of whole batches on the right."""
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    shares, batches = figure.subplots(1, 2)
    limited = [finding for finding in findings if finding.share is not None]
    _bars(shares, [finding.name for finding in limited], [finding.share or 0.0 for finding in limited], "%.2f")
    shares.axvline(1.0, linestyle="--", color="black", linewidth=1)
    shares.set_xlabel("share of what memory or products allow")
    whole = [finding for finding in findings if finding.name.startswith("whole batch")]
    _bars(batches, [finding.name for finding in whole], [finding.value for finding in whole], "%.0f")
    batches.set_xlabel("output tokens per second")
    figure.suptitle("torch engine on one GPU, random weights")
    figure.savefig(path, dpi=100)


def _bars(axes: Any, names: Sequence[str], values: Sequence[float], label: str) -> None:
    bars = axes.barh(range(len(names)), values, color=[f"C{index}" for index in range(len(names))])
    axes.bar_label(bars, fmt=label, fontsize=8, padding=2)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
