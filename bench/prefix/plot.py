"""Draws `baton bench prefix`: throughput, matched length, tails of TTFT and TPOT over cache size and batch size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plots import new_figure
from bench.prefix.sweep import SYSTEMS, Plan, Row

_METRICS = (
    ("output_tokens_per_second", "throughput (output tokens/s)", "linear"),
    ("matched_tokens", "matched length (tokens of a prompt)", "linear"),
    ("ttft_p99_seconds", "p99 TTFT (seconds)", "log"),
    ("tpot_p99_seconds", "p99 TPOT (seconds)", "log"),
)
_STYLES = {"batch": ("0.6", "--"), "slot": ("C0", "--"), "trie": ("C0", "-"), "baton": ("C3", "--"),
           "baton-cache": ("C3", "-")}  # fmt: skip
_EVEN_FACTOR, _NARROW_FACTOR = 3.0, 15.0
_WITHOUT_CACHE = ("batch", "slot", "baton")


def draw_prefix(rows: Sequence[Row], plan: Plan, title: str, path: Path) -> None:
    """Write a PNG of the rows of one timing: four metrics over the cache size, below them over the batch size."""
    figure = new_figure(17, 8.5)
    panels = figure.subplots(2, len(_METRICS))
    for column, (metric, label, scale) in enumerate(_METRICS):
        _draw_over_cache(panels[0][column], rows, plan, metric)
        _draw_over_batch(panels[1][column], rows, plan, metric)
        for axes in panels[:, column]:
            axes.set_ylabel(label)
            axes.set_yscale(scale)
            axes.grid(alpha=0.3)
            if scale == "linear":
                axes.set_ylim(bottom=0)
            else:
                _label_decades(axes)
    handles, labels = panels[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(SYSTEMS))
    figure.suptitle(title)
    figure.savefig(path)


def _draw_over_cache(axes: Any, rows: Sequence[Row], plan: Plan, metric: str) -> None:
    ticks = list(plan.cache_sizes)
    for system in SYSTEMS:
        found = {row.cache_tokens: row for row in rows if row.system == system and row.batch_size == plan.batch_size}
        if system in _WITHOUT_CACHE:
            values = [found[0].numbers[metric]] * len(ticks)
        else:
            values = [found[size].numbers[metric] for size in ticks]
        _draw_line(axes, list(range(len(ticks))), values, system)
    axes.set_xlabel(f"CACHE_SIZE (tokens), batch size {plan.batch_size}")
    _label_ticks(axes, ticks)


def _draw_over_batch(axes: Any, rows: Sequence[Row], plan: Plan, metric: str) -> None:
    ticks = sorted({*plan.batch_sizes, plan.batch_size})
    for system in SYSTEMS:
        size = 0 if system in _WITHOUT_CACHE else plan.cache_size
        found = {row.batch_size: row for row in rows if row.system == system and row.cache_tokens == size}
        values = [found[batch_size].numbers[metric] for batch_size in ticks]
        _draw_line(axes, list(range(len(ticks))), values, system)
    axes.set_xlabel(f"batch size, CACHE_SIZE {_short(plan.cache_size)}")
    _label_ticks(axes, ticks)


def _draw_line(axes: Any, positions: Sequence[int], values: Sequence[float], system: str) -> None:
    color, style = _STYLES[system]
    marker = None if style == "--" else "o"
    axes.plot(positions, values, color=color, linestyle=style, marker=marker, markersize=4, label=SYSTEMS[system])


def _label_ticks(axes: Any, values: Sequence[int]) -> None:
    """Put the values at equal distances: they double or grow tenfold."""
    axes.set_xticks(range(len(values)), [_short(value) for value in values])


def _label_decades(axes: Any) -> None:
    """Write plain numbers, between powers of ten too where there are few; what hardly varies needs no logarithm."""
    low, high = axes.get_ylim()
    if high / low < _EVEN_FACTOR:
        axes.set_yscale("linear")
        return
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    is_narrow = high / low < _NARROW_FACTOR
    axes.yaxis.set_minor_formatter((lambda value, _: f"{value:.2g}") if is_narrow else "")


def _short(number: int) -> str:
    return f"{number // 1000}k" if number >= 1000 and number % 1000 == 0 else str(number)
