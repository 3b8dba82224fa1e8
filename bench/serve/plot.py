"""Runs of `baton bench serve` as a picture: distributions of latencies, and what happened over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.client.metrics import in_flight
from bench.client.sample import RequestSample
from bench.plots import new_figure
from bench.serve.report import Run

_TIME_BINS = 50


def draw_runs(runs: Sequence[Run], path: Path) -> None:
    """Write a PNG of one or several runs: four distributions, output rate and requests in flight over time."""
    figure = new_figure(14, 8)
    panels = figure.subplots(2, 3).flat
    _draw_shares(panels[0], runs, "time to first token (ms)", lambda sample: [sample.ttft_seconds])
    _draw_shares(panels[1], runs, "time per output token, per request (ms)", _tpot)
    _draw_shares(panels[2], runs, "gap between tokens (ms)", lambda sample: sample.itl_seconds)
    panels[2].set_xscale("symlog", linthresh=1.0)
    _draw_shares(panels[3], runs, "end-to-end latency (ms)", lambda sample: [sample.e2e_seconds])
    _draw_output_rate(panels[4], runs)
    _draw_in_flight(panels[5], runs)
    if len(runs) > 1:
        handles, labels = panels[5].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(runs)))
    figure.suptitle(_title(runs))
    figure.savefig(path)


def _title(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return "\n".join(f"{run.label}: {_line(run)}" for run in runs)
    return f"{runs[0].label}\n{_line(runs[0])}"


def _line(run: Run) -> str:
    summary = run.summary
    return (
        f"{summary.num_requests} requests ({summary.num_failed} failed), {summary.requests_per_second:.1f} requests/s,"
        f" {summary.output_tokens_per_second:.0f} output tokens/s, good {100 * summary.good_share:.0f} %"
    )


def _tpot(sample: RequestSample) -> list[float]:
    return [] if sample.tpot_seconds is None else [sample.tpot_seconds]


def _draw_shares(axes: Any, runs: Sequence[Run], name: str, values: Callable[[RequestSample], list[float]]) -> None:
    """Draw the share of values that are at most x, one line per run."""
    for run in runs:
        ordered = sorted(1000 * value for sample in run.samples if sample.is_ok for value in values(sample))
        if ordered:
            shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
            axes.step([ordered[0], *ordered], [0.0, *shares], where="post", label=run.label)
    for share, label in ((0.5, "p50"), (0.9, "p90"), (0.99, "p99")):
        axes.axhline(share, color="0.85", linewidth=0.8, zorder=0)
        axes.text(1.0, share, label, transform=axes.get_yaxis_transform(), fontsize=7, va="center", color="0.4")
    axes.set(xlabel=name, ylabel="share at most", ylim=(0, 1.02))
    axes.set_xlim(left=0)


def _draw_output_rate(axes: Any, runs: Sequence[Run]) -> None:
    for run in runs:
        events = [seconds for sample in run.samples for seconds in sample.token_seconds]
        if not events:
            continue
        width = max(events) / _TIME_BINS or 1.0
        counts = [0] * _TIME_BINS
        for seconds in events:
            counts[min(_TIME_BINS - 1, int(seconds / width))] += 1
        axes.stairs([count / width for count in counts], [width * edge for edge in range(_TIME_BINS + 1)])
    axes.set(xlabel="time (s)", ylabel="output events per second")
    axes.set_ylim(bottom=0)


def _draw_in_flight(axes: Any, runs: Sequence[Run]) -> None:
    for run in runs:
        steps = in_flight(run.samples)
        axes.step([seconds for seconds, _ in steps], [count for _, count in steps], where="post", label=run.label)
    axes.set(xlabel="time (s)", ylabel="requests in flight")
    axes.set_ylim(bottom=0)
