"""Draws the overlap measurement: hidden share by sending time over computing time, beside what a pipeline allows."""

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
_NUM_CURVE_POINTS = 200


def pipeline_hidden_share(ratio: float, num_frames: int) -> float:
    """Return the share of a transfer that a pipeline of equal frames hides, 0 to 1.

    total = t_comp + (N - 1) * max(t_comp, t_send) + t_send, per frame; what exceeds N * t_comp is exposed.

    Args:
        ratio: t_send / t_comp, above 0.
        num_frames: N, 1 or more.
    """
    total = 1 + (num_frames - 1) * max(1.0, ratio) + ratio
    return 1 - (total - num_frames) / (num_frames * ratio)


def draw_overlap(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw one line per setting, medians with the range of the samples, and its pipeline dashed."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, name in enumerate(dict.fromkeys(row["setting"]["name"] for row in rows)):
        _draw_setting(axes, [row for row in rows if row["setting"]["name"] == name], name, f"C{number}")
    axes.set_xlabel("sending time / computing time of a prompt's KV")
    axes.set_ylabel("hidden share of the transfer")
    axes.set_ylim(0, 1.05)
    axes.grid(alpha=0.3)
    axes.legend(title="solid: measured, dashed: N equal frames in a pipeline")
    axes.set_title("How much of the KV transfer hides behind prefill")
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _draw_setting(axes: Any, rows: Sequence[Mapping[str, Any]], name: str, color: str) -> None:
    ratios = [row["ratio"] for row in rows]
    medians = [row["hidden_share"] for row in rows]
    below = [median - min(_shares(row)) for median, row in zip(medians, rows, strict=True)]
    above = [max(_shares(row)) - median for median, row in zip(medians, rows, strict=True)]
    axes.errorbar(ratios, medians, yerr=(below, above), color=color, marker="o", capsize=3, label=name)
    num_frames = rows[0]["samples"][0]["num_frames"]
    low, high = min(ratios), max(ratios)
    curve = [low + (high - low) * index / _NUM_CURVE_POINTS for index in range(_NUM_CURVE_POINTS + 1)]
    axes.plot(
        curve, [pipeline_hidden_share(ratio, num_frames) for ratio in curve], color=color, linestyle="--", alpha=0.6
    )


def _shares(row: Mapping[str, Any]) -> list[float]:
    return [
        max(0.0, 1 - sample["exposed_seconds"] / sample["transfer_seconds"]) if sample["transfer_seconds"] else 1.0
        for sample in row["samples"]
    ]
