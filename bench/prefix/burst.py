"""What it is worth to compute the prompts of a burst together, and what they have in common once.

Run as `baton bench burst --model services/baton/demo/checkpoint --out bench/results/burst.json`. Three nodes
of the same model run side by side, each with its own options: prompts one after the other, prompts in one pass, and in
one pass with equal beginnings computed once. In every round each of them in turn gets the same N prompts at the same
instant, with its prefix cache on; no round repeats a prompt of another. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.client.completion import COMPLETIONS_PATH, Sampling
from bench.client.http_client import HttpClient, HttpError
from bench.client.load import LoadSettings, run_load
from bench.client.metrics import Summary, summarize
from bench.client.sample import RequestSample
from bench.local_cluster import running_node
from bench.plots import new_figure
from bench.results_file import describe_machine, write_results
from bench.workloads.dataset import Session, Turn
from bench.workloads.vocabulary import TokenIds

FORMAT = "baton-bench-burst/1"
VARIANTS: Mapping[str, Mapping[str, int | bool]] = {
    "serial misses": {"max_step_prompts": 1, "share_prompts": False},
    "batched misses": {"share_prompts": False},
    "batched + dedup": {},
}
"""Options of the decode node; the first is what the others are compared with."""
WORKLOADS = ("unique", "copies", "beginnings")
"""Prompts without anything in common; each prompt several times; prompts that begin with the same tokens."""
_LATENCIES = ("add_p50", "ttft_p50", "tpot_p50", "itl_p99", "e2e_p50")
_LABELS = ("add p50", "TTFT p50", "TPOT p50", "ITL p99", "latency p50")


@dataclass(slots=True)
class Row:
    """All rounds of one variant under one workload."""

    workload: str
    variant: str
    rounds: list[list[RequestSample]] = field(default_factory=list)

    @property
    def summaries(self) -> list[Summary]:
        """Numbers of each round."""
        return [summarize(samples) for samples in self.rounds]

    def medians(self) -> dict[str, float]:
        """Return the median over the rounds of each number in the table; seconds, tokens/s."""
        rounds = [_numbers(samples) for samples in self.rounds]
        return {name: statistics.median(numbers[name] for numbers in rounds) for name in rounds[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the files; 1 if it could not be measured."""
    options = _parser().parse_args(arguments)
    try:
        rows = asyncio.run(_measure(options))
    except (HttpError, OSError, RuntimeError, ValueError) as error:
        print(f"baton bench burst: {error}", file=sys.stderr)
        return 1
    Console(width=150).print(table_of(rows))
    if options.out:
        head = {
            "format": FORMAT,
            "machine": describe_machine(),
            "settings": {
                key: value.name if isinstance(value, Path) else str(value)
                for key, value in vars(options).items()
                if key not in ("out", "plot")
            },
        }
        told = [{**asdict(row), "medians": row.medians(), "ratios": ratios(rows, row)} for row in rows]
        write_results(options.out, head | {"rows": told})
    if options.plot:
        draw_burst(rows, options.plot)
    return 0


def ratios(rows: Sequence[Row], row: Row) -> dict[str, float]:
    """Return how much better a row is than serial misses: the median over rounds of the ratio within each round."""
    base = next(other for other in rows if other.workload == row.workload and other.variant == next(iter(VARIANTS)))
    pairs = list(zip(map(_numbers, base.rounds), map(_numbers, row.rounds), strict=True))
    return {
        "ttft_p50": statistics.median(serial["ttft_p50"] / own["ttft_p50"] for serial, own in pairs),
        "throughput": statistics.median(own["throughput"] / serial["throughput"] for serial, own in pairs),
    }


def table_of(rows: Sequence[Row]) -> Table:
    """Return medians and ratios, one line per workload and variant."""
    columns = (
        "add p50",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "ITL p99",
        "latency p50",
        "tokens/s",
        "TTFT x",
        "tokens/s x",
    )
    table = Table("workload", "variant", *columns, title="a burst of prompts; ms, medians of the rounds")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        medians, better = row.medians(), ratios(rows, row)
        names = ("add_p50", "ttft_p50", "ttft_p99", "tpot_p50", "itl_p99", "e2e_p50")
        table.add_row(
            row.workload,
            row.variant,
            *(f"{1000 * medians[name]:.0f}" for name in names),
            f"{medians['throughput']:.0f}",
            f"{better['ttft_p50']:.2f}",
            f"{better['throughput']:.2f}",
        )
    return table


def prompts_of(workload: str, options: argparse.Namespace, seed: str) -> list[Session]:
    """Return the prompts of a round, in the order in which they are sent."""
    random, vocabulary = Random(f"{options.seed}/{workload}/{seed}"), TokenIds(*options.token_ids)
    count, length = options.requests, options.prompt_tokens
    if workload == "copies":
        different = [vocabulary.draw(random, length) for _ in range(-(-count // options.copies))]
        prompts = (different * options.copies)[:count]
    elif workload == "beginnings":
        beginning = vocabulary.draw(random, options.shared_tokens)
        prompts = [beginning + vocabulary.draw(random, length) for _ in range(count)]
    else:
        prompts = [vocabulary.draw(random, length) for _ in range(count)]
    return [Session((Turn(vocabulary.render(prompt), options.output_tokens),)) for prompt in prompts]


async def _measure(options: argparse.Namespace) -> list[Row]:
    node = {"engine": options.engine, "num_threads": options.num_threads, "num_blocks": options.num_blocks}
    node |= {"max_step_tokens": options.max_step_tokens, "max_batch_size": options.requests}
    rows = [Row(workload, variant) for workload in WORKLOADS for variant in VARIANTS]
    with ExitStack() as stack:
        clients = {}
        for variant, settings in VARIANTS.items():
            url = stack.enter_context(running_node(options.model, {**node, **settings}))
            clients[variant] = stack.enter_context(closing(HttpClient(url, {})))
        for number in range(options.warmup + options.repeat):
            for row in rows:
                samples = await _burst(clients[row.variant], row.workload, options, str(number))
                if number >= options.warmup:
                    row.rounds.append(samples)
    return rows


async def _burst(client: HttpClient, workload: str, options: argparse.Namespace, seed: str) -> list[RequestSample]:
    sessions = prompts_of(workload, options, seed)
    await client.open_idle(len(sessions))
    settings = LoadSettings(COMPLETIONS_PATH, Sampling("model"))
    samples = await run_load(client, sessions, [0.0] * len(sessions), settings)
    failed = [sample.error for sample in samples if not sample.is_ok]
    if failed:
        raise HttpError(f"{len(failed)} of {len(samples)} requests failed: {failed[0]}")
    return samples


def _numbers(samples: Sequence[RequestSample]) -> dict[str, float]:
    summary = summarize(samples)
    assert summary.ttft_seconds, "a burst whose requests failed is not measured"
    tpot, itl, e2e = summary.tpot_seconds, summary.itl_seconds, summary.e2e_seconds
    return {
        "add_p50": statistics.median(sample.add_seconds or 0.0 for sample in samples),
        "ttft_p50": summary.ttft_seconds.p50,
        "ttft_p99": summary.ttft_seconds.p99,
        "tpot_p50": tpot.p50 if tpot else 0.0,
        "itl_p99": itl.p99 if itl else 0.0,
        "e2e_p50": e2e.p50 if e2e else 0.0,
        "throughput": summary.output_tokens_per_second,
    }


def _token_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    return int(low), int(high)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench burst", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--engine", choices=("torch", "mlx"), default="torch")
    parser.add_argument("--requests", type=int, default=32, help="prompts at once")
    parser.add_argument("--prompt-tokens", type=int, default=4, help="of a prompt, or of what is its own of it")
    parser.add_argument("--shared-tokens", type=int, default=64, help="of what all prompts of beginnings begin with")
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument("--copies", type=int, default=4, help="times that each prompt comes in the workload copies")
    parser.add_argument(
        "--token-ids", type=_token_range, default=(3, 90), help="LOW:HIGH, ids that prompts are made of"
    )
    parser.add_argument("--repeat", type=int, default=7, help="rounds measured")
    parser.add_argument("--warmup", type=int, default=1, help="rounds before them")
    parser.add_argument("--num-threads", type=int, default=1, help="CPU threads of each engine")
    parser.add_argument("--num-blocks", type=int, default=4096)
    parser.add_argument("--max-step-tokens", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON with all samples")
    parser.add_argument("--plot", type=Path, help="PNG")
    return parser


def draw_burst(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: one line of panels per workload."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    figure = new_figure(14, 3.6 * len(workloads))
    panels = figure.subplots(len(workloads), 3, squeeze=False, width_ratios=(3, 3, 1))
    for line, workload in zip(panels, workloads, strict=True):
        chosen = [row for row in rows if row.workload == workload]
        _draw_first_tokens(line[0], chosen)
        _draw_latencies(line[1], chosen)
        _draw_throughput(line[2], chosen)
        line[0].set_ylabel(f"{workload}\nshare of first tokens")
    panels[0][0].legend()
    figure.suptitle("A burst of prompts: one after the other, in one pass, and with equal beginnings computed once")
    figure.savefig(path)


def _draw_first_tokens(axes: Any, rows: Sequence[Row]) -> None:
    """Draw the share of first tokens that have come after x, over all rounds."""
    for row in rows:
        ordered = sorted(1000 * sample.ttft_seconds for samples in row.rounds for sample in samples)
        shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
        axes.step([ordered[0], *ordered], [0.0, *shares], where="post", label=row.variant)
    axes.set(xlabel="time to first token (ms)", ylim=(0, 1.02))
    axes.set_xlim(left=0)


def _draw_latencies(axes: Any, rows: Sequence[Row]) -> None:
    width = 0.8 / len(rows)
    for number, row in enumerate(rows):
        medians = row.medians()
        places = [index + (number - (len(rows) - 1) / 2) * width for index in range(len(_LATENCIES))]
        bars = axes.bar(places, [1000 * medians[name] for name in _LATENCIES], width)
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(_LABELS)), _LABELS)
    axes.set_ylabel("ms, median of the rounds")


def _draw_throughput(axes: Any, rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows):
        axes.bar_label(axes.bar([number], [row.medians()["throughput"]], color=f"C{number}"), fmt="%.0f", fontsize=8)
    axes.set_xticks([])
    axes.set_ylabel("output tokens/s")


if __name__ == "__main__":
    sys.exit(main())
