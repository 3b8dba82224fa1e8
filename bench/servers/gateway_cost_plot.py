"""Draws the results of `bench.servers.gateway_cost`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.servers.cost_sample import Sample, median_of

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:  # pragma: no cover
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error

_PARTS = {"gateway": "tab:blue", "router": "tab:orange"}
_SYSTEMS = {"direct": "tab:grey", "baton": "tab:blue", "dynamo": "tab:green"}
_TIMES = {"ttft_p50": "TTFT p50", "ttft_p99": "TTFT p99", "itl_p50": "ITL p50", "itl_p99": "ITL p99"}


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Draw, for each step time and number of streams, CPU time per token by process, and times beside a direct call.

    Every panel has an axis of its own from 0 on: what one stream costs and what one of 256 costs differ tenfold.
    """
    steps = list(dict.fromkeys(sample.step_seconds for sample in samples))
    numbers = list(dict.fromkeys(sample.load.num_streams for sample in samples))
    figure = Figure(figsize=(5.2 * len(numbers), 5.6 * len(steps)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2 * len(steps), len(numbers), squeeze=False)
    for row, step_seconds in enumerate(steps):
        title = f"{step_seconds * 1000:g} ms a step" if step_seconds else "unpaced"
        for column, number in enumerate(numbers):
            group = [one for one in samples if (one.step_seconds, one.load.num_streams) == (step_seconds, number)]
            _draw_cost(panels[2 * row][column], group)
            _draw_times(panels[2 * row + 1][column], group)
            panels[2 * row][column].set_title(f"{number} stream{'s' if number > 1 else ''}, {title}")
    figure.suptitle("What a streamed token costs outside the engine")
    figure.savefig(path, dpi=90)


def _draw_cost(axes: Any, samples: Sequence[Sample]) -> None:
    systems = [system for system in _SYSTEMS if system != "direct" and any(one.system == system for one in samples)]
    for position, system in enumerate(systems):
        group = [sample for sample in samples if sample.system == system]
        bottom = 0.0
        for part, color in _PARTS.items():
            if part in group[0].cpu_seconds:
                height = median_of(group, "cpu", part)
                axes.bar(position, height, bottom=bottom, color=color)
                bottom += height
        axes.text(position, bottom, f"{bottom:.0f}", ha="center", va="bottom", fontsize=9)
    for part, color in _PARTS.items():
        axes.bar(0, 0, color=color, label=part)
    axes.set_xticks(range(len(systems)), [_name(system) for system in systems])
    axes.set(ylabel="CPU microseconds per token")
    axes.margins(y=0.12)
    axes.legend(fontsize="small")


def _draw_times(axes: Any, samples: Sequence[Sample]) -> None:
    systems = [system for system in _SYSTEMS if any(sample.system == system for sample in samples)]
    width = 0.8 / len(systems)
    for number, system in enumerate(systems):
        group = [sample for sample in samples if sample.system == system]
        values = [1000 * median_of(group, f"{name}_seconds") for name in _TIMES]
        places = [index + (number - (len(systems) - 1) / 2) * width for index in range(len(_TIMES))]
        bars = axes.bar(places, values, width, color=_SYSTEMS[system], label=_name(system))
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(_TIMES)), list(_TIMES.values()))
    axes.set(ylabel="milliseconds")
    axes.legend(fontsize="small")


def _name(system: str) -> str:
    return {"direct": "direct gRPC", "dynamo": "dynamo (router inside)"}.get(system, system)
