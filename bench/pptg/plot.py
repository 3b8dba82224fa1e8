"""Results of `baton bench pptg` as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.plots import new_figure
from bench.pptg.report import BatchRun, SettingSummary, summarize_settings


def draw_pptg(runs: Sequence[BatchRun], path: Path, title: str) -> None:
    """Write a PNG: rates of one request over the prompt's length, and both aggregates over the concurrency."""
    rows = summarize_settings(runs)
    figure = new_figure(15, 4.8)
    prompt, generation, aggregate = figure.subplots(1, 3)
    _draw_over_length(prompt, rows, "prompt_tps", "prompt tokens/s of one request")
    _draw_over_length(generation, rows, "generation_tps", "generated tokens/s of one request")
    _draw_aggregates(aggregate, rows)
    figure.suptitle(title)
    figure.savefig(path)


def _draw_over_length(axes: Any, rows: Sequence[SettingSummary], field: str, name: str) -> None:
    """Draw one line per (output length, concurrency); the median over requests."""
    for output_tokens, concurrency in dict.fromkeys(
        (row.setting.output_tokens, row.setting.concurrency) for row in rows
    ):
        of_line = [
            row for row in rows if (row.setting.output_tokens, row.setting.concurrency) == (output_tokens, concurrency)
        ]
        lengths = [row.setting.prompt_tokens for row in of_line]
        values = [getattr(row, field) for row in of_line]
        axes.plot(lengths, values, marker="o", label=f"tg {output_tokens}, {concurrency} at once")
    axes.set(xlabel="prompt tokens", ylabel=name)
    axes.set_xscale("log", base=2)
    lengths = sorted({row.setting.prompt_tokens for row in rows})
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def _draw_aggregates(axes: Any, rows: Sequence[SettingSummary]) -> None:
    """Draw exo's figure beside the true one at each concurrency, for the first lengths that were measured."""
    first = rows[0].setting
    lengths = (first.prompt_tokens, first.output_tokens)
    of_lengths = [row for row in rows if (row.setting.prompt_tokens, row.setting.output_tokens) == lengths]
    places = range(len(of_lengths))
    exo = [row.exo_aggregate_tps for row in of_lengths]
    true = [row.batch_output_tps for row in of_lengths]
    axes.bar([place - 0.2 for place in places], exo, 0.38, label="exo's max x N", color="0.75")
    axes.bar([place + 0.2 for place in places], true, 0.38, label="true: output tokens / batch wall")
    axes.set_xticks(list(places), [str(row.setting.concurrency) for row in of_lengths])
    axes.set(xlabel=f"requests at once (pp {lengths[0]}, tg {lengths[1]})", ylabel="aggregate tokens/s")
    axes.legend(fontsize=8)
