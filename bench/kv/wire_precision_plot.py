"""Draws what wire formats lose: logit error against bytes per model, and needles found by context length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error

_DOTS_PER_INCH = 110


def draw_wires(found: Mapping[str, Any], path: Path) -> None:
    """Draw both pictures side by side, a colour per format."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    FigureCanvasAgg(figure)
    errors, needles = figure.subplots(1, 2)
    rows = [*found["needles"], *(one for model in found["qualities"].values() for one in model)]
    wires = dict.fromkeys(one["wire"] for one in rows)
    colors = {wire: f"C{number}" for number, wire in enumerate(wires)}
    _draw_errors(errors, found, colors)
    _draw_needles(needles, found, colors)
    figure.suptitle(f"KV in narrower number formats on the wire ({found['engine']}, {found['dtype']} cache)")
    figure.savefig(path, dpi=_DOTS_PER_INCH)


def _draw_errors(axes: Any, found: Mapping[str, Any], colors: Mapping[str, str]) -> None:
    """A dot per model and format, the demo model's, which is trained, as a star."""
    models = list(found["qualities"])
    for column, model in enumerate(models):
        is_trained = model == models[-1]
        for one in found["qualities"][model]:
            axes.plot(column, one["logit_error"], "*" if is_trained else "o", color=colors[one["wire"]])
    axes.set_xticks(range(len(models)), [*models[:-1], "demo\n(trained)"], rotation=60, ha="right")
    axes.set_yscale("log")
    axes.set_ylabel("logit error / standard deviation of logits")
    axes.set_title("after 160 tokens of context, 96 forced")
    axes.grid(alpha=0.3, axis="y")


def _draw_needles(axes: Any, found: Mapping[str, Any], colors: Mapping[str, str]) -> None:
    for number, (wire, color) in enumerate(colors.items()):
        rows = [one for one in found["needles"] if one["wire"] == wire]
        lengths = [one["context_tokens"] * (1 + 0.012 * (number - 3)) for one in rows]  # lines lie on each other
        shares = [one["num_right"] / one["num_asked"] for one in rows]
        if rows:
            axes.plot(lengths, shares, marker="o", color=color, label=wire)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("needles found by the demo model")
    axes.set_title("one value among facts, all answer tokens right")
    axes.grid(alpha=0.3)
    axes.legend(title="wire, K/V")
