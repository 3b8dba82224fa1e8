"""Draws what carries KV frames: rate, and CPU time at both ends, one bar per transport."""

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


def draw_transports(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw medians, and each sample of the rate as a dot."""
    figure = Figure(figsize=(10, 0.6 * len(rows) + 1.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    names = [row["name"] for row in rows]
    left.barh(names, [row["gigabytes_per_second"] for row in rows], color="C0", alpha=0.6)
    for name, row in zip(names, rows, strict=True):
        rates = [sample["gigabytes_per_second"] for sample in row["samples"]]
        left.plot(rates, [name] * len(rates), "k.", markersize=4)
    left.set_xlabel("GB/s, median and samples")
    send = [row["send_cpu_seconds"] for row in rows]
    right.barh(names, send, color="C1", alpha=0.7, label="sender")
    receive = [row["receive_cpu_seconds"] for row in rows]
    right.barh(names, receive, left=send, color="C2", alpha=0.7, label="receiver")
    right.set_xlabel("CPU seconds per GB, medians")
    right.legend()
    left.invert_yaxis()
    for axes in (left, right):
        axes.grid(axis="x", alpha=0.3)
    figure.suptitle("KV frames over loopback, landed and compared")
    figure.savefig(path, dpi=_DOTS_PER_INCH)
