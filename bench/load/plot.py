"""The table of a run as a picture: what users get over the rate at which they come."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.load.row import MAX_TPOT_RATIO, MIN_THROUGHPUT_RATIO, Row
from bench.plots import name_axes, new_figure

_RATE = "requests per second (of the nodes' time)"


def draw_load(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG of 1 or more rows: throughput, TTFT, TPOT and the host's CPU over the rate, by deployment and output.

    Rows that were repeated with slower nodes have a line of their own.
    """
    figure = new_figure(13, 8)
    throughput, ttft, tpot, cpu = figure.subplots(2, 2).flat
    least: dict[tuple[str, int, float], float] = {}
    for row in rows:
        key = (row.deployment, row.num_output_tokens, row.rate)
        least[key] = min(row.time_scale, least.get(key, row.time_scale))
    lines: dict[tuple[str, int, bool], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.rate):
        is_again = row.time_scale > least[row.deployment, row.num_output_tokens, row.rate]
        lines.setdefault((row.deployment, row.num_output_tokens, is_again), []).append(row)
    for number, ((deployment, num_output_tokens, is_again), chosen) in enumerate(lines.items()):
        name = f"{deployment}, {num_output_tokens} out" + (", slower nodes" if is_again else "")
        style = {"marker": "o", "color": f"C{number % 10}", "linestyle": "--" if is_again else "-"}
        rates = [row.rate for row in chosen]
        throughput.plot(rates, [row.throughput_ratio for row in chosen], label=name, **style)
        ttft.plot(rates, [row.ttft_mean_seconds for row in chosen], **style)
        ttft.plot(rates, [row.ttft_bound_seconds for row in chosen], color=style["color"], linestyle=":", alpha=0.5)
        tpot.plot(rates, [row.tpot_p99_ratio for row in chosen], **style)
        cpu.plot(rates, [100 * row.host_cpu_share for row in chosen], **style)
    name_axes(throughput, _RATE, "throughput / arriving rate", MIN_THROUGHPUT_RATIO)
    name_axes(ttft, _RATE, "TTFT mean (dotted: at most), s")
    ttft.set_yscale("log")
    name_axes(tpot, _RATE, "TPOT p99 / alone", MAX_TPOT_RATIO)
    name_axes(cpu, _RATE, "CPU of the host, %", 85)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    figure.savefig(path)
