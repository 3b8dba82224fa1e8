"""Draws the results of `bench.gateway_cost`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cost_sample import Sample, median_of

_PARTS = ("gateway", "router", "decode")
_COLORS = {"gateway": "tab:blue", "router": "tab:orange", "decode": "lightgrey"}
_LABELS = {"gateway": "gateway", "router": "router", "decode": "node, mock engine included"}


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Draw CPU time per token by process, and the tails of TTFT and ITL, by step time and number of streams."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    steps = list(dict.fromkeys(sample.step_seconds for sample in samples))
    figure, axes = plt.subplots(len(steps), 3, figsize=(15, 4 * len(steps)), squeeze=False, layout="constrained")
    for row, step_seconds in zip(axes, steps, strict=True):
        group = [sample for sample in samples if sample.step_seconds == step_seconds]
        title = f"{step_seconds * 1000:g} ms a step" if step_seconds else "unpaced"
        _draw_cost(row[0], group, title)
        _draw_times(row[1], group, "ttft", f"TTFT, {title}")
        _draw_times(row[2], group, "itl", f"ITL, {title}")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_cost(axes: Any, samples: Sequence[Sample], title: str) -> None:
    served = [sample for sample in samples if sample.system != "direct"]
    groups = list(dict.fromkeys((sample.load.num_streams, sample.system) for sample in served))
    for position, (num_streams, system) in enumerate(groups):
        group = [sample for sample in served if (sample.load.num_streams, sample.system) == (num_streams, system)]
        bottom = 0.0
        for part in _PARTS:
            if part in group[0].cpu_seconds:
                height = median_of(group, "cpu", part)
                axes.bar(position, height, bottom=bottom, color=_COLORS[part])
                bottom += height
    axes.set_xticks(range(len(groups)), [f"{system}\n{num_streams}" for num_streams, system in groups])
    for part in _PARTS:
        axes.bar(0, 0, color=_COLORS[part], label=_LABELS[part])
    axes.set(title=f"CPU per streamed token, {title}", ylabel="microseconds", yscale="log")
    axes.legend()


def _draw_times(axes: Any, samples: Sequence[Sample], name: str, title: str) -> None:
    for system in dict.fromkeys(sample.system for sample in samples):
        for share, style in (("p50", "-"), ("p99", "--")):
            numbers = list(dict.fromkeys(sample.load.num_streams for sample in samples))
            values = [
                median_of(
                    [sample for sample in samples if (sample.system, sample.load.num_streams) == (system, number)],
                    f"{name}_{share}_seconds",
                )
                * 1000
                for number in numbers
            ]
            axes.plot(range(len(numbers)), values, style, marker="o", label=f"{system} {share}")
    axes.set_xticks(range(len(numbers)), [str(number) for number in numbers])
    axes.set(title=title, xlabel="streams", ylabel="milliseconds", yscale="log")
    axes.legend(fontsize="small")
