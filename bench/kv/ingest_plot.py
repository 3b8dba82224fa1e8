"""Draws what KV that arrives costs those who generate: gaps between tokens, alone and beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.kv.ingest import Row

try:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("plots need matplotlib: pip install 'baton[bench]'") from error

_DOTS_PER_INCH = 110


def draw_ingest(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel per pair of nodes and link: the share of gaps longer than x, on logarithmic axes."""
    panels = list(dict.fromkeys((row.pair, row.link_gigabits_per_second) for row in rows))
    figure = Figure(figsize=(4.6 * len(panels), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        chosen = [row for row in rows if (row.pair, row.link_gigabits_per_second) == panel]
        for number, row in enumerate(chosen):
            for part, style in (("alone", ":"), ("beside", "-")):
                gaps = sorted(1000 * gap for each in row.rounds for gap in getattr(each, part))
                shares = [1 - index / len(gaps) for index in range(len(gaps))]
                axes.plot(gaps, shares, style, color=f"C{number}", label=f"{row.variant}, {part}")
        ratios = ", ".join(f"{row.variant} {row.ratio('tpot', 99):.2f}" for row in chosen)
        name, rate = panel
        axes.set_title(f"{name}\n{f'{rate:g} Gb/s' if rate else 'link not shaped'}\nTPOT p99: {ratios}", fontsize=9)
        axes.set(xscale="log", yscale="log", xlabel="ms between tokens", ylabel="share of gaps that are longer")
        axes.tick_params(axis="x", which="both", labelsize=7, labelrotation=60)  # less than a decade: all have numbers
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    figure.suptitle("Requests that generate, alone and while long prompts' KV arrives")
    figure.savefig(path, dpi=_DOTS_PER_INCH)
