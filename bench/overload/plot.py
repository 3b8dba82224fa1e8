"""Goodput, refusals, TTFT and memory of all policies as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.overload.row import KEPT_SHARE, Row
from bench.plots import name_axes, new_figure


def draw_overload(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG of 1 or more rows: per policy goodput, p99 of TTFT and refusals over the load, memory over time."""
    figure = new_figure(13, 8)
    goodput, ttft, refusals, memory = figure.subplots(2, 2).flat
    for number, policy in enumerate(dict.fromkeys(row.policy for row in rows)):
        chosen = sorted((row for row in rows if row.policy == policy), key=lambda row: row.load)
        loads, style = [row.load for row in chosen], {"marker": "o", "color": f"C{number % 10}"}
        goodput.plot(loads, [row.goodput for row in chosen], label=policy, **style)
        ttft.plot(loads, [row.ttft_seconds("a", 0.99) for row in chosen], **style)
        refused = [(row.load, row.refusal_seconds(0.99)) for row in chosen]
        points = [(load, 1000 * seconds) for load, seconds in refused if seconds is not None]
        refusals.plot([load for load, _ in points], [milliseconds for _, milliseconds in points], **style)
        _draw_memory(memory, chosen[-1], f"C{number % 10}")
    best = max(row.goodput for row in rows)
    name_axes(goodput, "requested / capacity", "good requests per second", KEPT_SHARE * best)
    name_axes(ttft, "requested / capacity", "TTFT p99, s", rows[0].level.ttft_seconds)
    name_axes(refusals, "requested / capacity", "time to a refusal, p99, ms")
    name_axes(memory, "time at the highest load, s", "memory of gateway (solid) and router, MB")
    for axes in (goodput, refusals, memory):
        axes.set_ylim(bottom=0)
    ttft.set_yscale("log")
    figure.legend(loc="outside lower center", ncols=6, fontsize=8)
    figure.savefig(path)


def _draw_memory(axes: Any, row: Row, color: str) -> None:
    for service, line_style in (("gateway", "-"), ("router", "--")):
        seen = [(each.seconds, each.num_bytes[service]) for each in row.drive.memory if service in each.num_bytes]
        axes.plot([at for at, _ in seen], [size / 1e6 for _, size in seen], color=color, linestyle=line_style)
