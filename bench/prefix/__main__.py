"""What a prefix cache and a scheduler are worth: the mock-engine note's experiments, and Baton on the same load.

Run as `baton bench prefix --out prefix.json --plot prefix.png`. No server is asked: time is virtual. Baton's part
runs its own scheduler and block pool by `baton simulate`. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from bench.prefix.conversations import (
    Conversation,
    Population,
    Request,
    read_mooncake_requests,
    read_sharegpt_conversations,
    requests_of,
    split,
)
from bench.prefix.options import parser, plan_of
from bench.prefix.pass_timing import TIMINGS
from bench.prefix.simulated_baton import BatonFailedError
from bench.prefix.static_trie import PrefixTrie
from bench.prefix.sweep import SYSTEMS, Plan, Row, num_rows, sweep
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-prefix/1"
_COLUMNS = (
    ("output/s", "output_tokens_per_second", 1.0),
    ("matched", "matched_tokens", 1.0),
    ("TTFT p50 s", "ttft_p50_seconds", 1.0),
    ("TTFT p99 s", "ttft_p99_seconds", 1.0),
    ("TPOT p50 ms", "tpot_p50_seconds", 1000.0),
    ("TPOT p99 ms", "tpot_p99_seconds", 1000.0),
)
_SIGNIFICANT_DIGITS = 5


class Workload(NamedTuple):
    """What is served, and what the static trie knows."""

    requests: list[Request]
    trie: PrefixTrie


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweeps, print a table, write the files; 1 if Baton's part failed, 2 if the options are wrong."""
    command = parser()
    options = command.parse_args(arguments)
    try:
        plan, workload = plan_of(options), make_workload(options)
    except (ValueError, OSError, KeyError) as error:
        command.error(str(error))
    try:
        rows = measure(workload, plan, options)
    except BatonFailedError as error:
        print(f"baton bench prefix: {error}", file=sys.stderr)
        return 1
    print(table(rows))
    if options.out:
        write_rows(options.out, rows, options, workload)
    if options.plot:
        _draw(rows, plan, options)
    return 0


def make_workload(options: argparse.Namespace) -> Workload:
    """Return the load and the whole trie.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is missing or holds too little.
    """
    trie = PrefixTrie()
    if options.dataset != "synthetic" and options.path is None:
        raise ValueError(f"the dataset {options.dataset} needs --path")
    if options.dataset == "mooncake":
        total = options.train + options.count
        found = read_mooncake_requests(options.path, options.seed, total, options.length_factor)
        if len(found) < total:
            raise ValueError(f"{total} requests wanted, the trace has {len(found)} that fit: use --train, --count")
        for request in found[: options.train]:
            trie.insert(request.prompt + request.output)
        return Workload(found[options.train :], trie)
    train, served = _conversations(options)
    for conversation in train:
        trie.insert(conversation.tokens)
    return Workload(requests_of(served, options.seed), trie)


def measure(workload: Workload, plan: Plan, options: argparse.Namespace) -> list[Row]:
    """Return the rows of every timing asked for."""
    timings = [timing for timing in TIMINGS if timing.name in options.timings]
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=Console(stderr=True), disable=options.quiet, refresh_per_second=4) as bar:
        task = bar.add_task("runs", total=len(timings) * num_rows(plan))
        for timing in timings:
            for row in sweep(workload.requests, workload.trie, timing, plan):
                rows.append(row)
                bar.advance(task)
    return rows


def table(rows: Sequence[Row]) -> str:
    """Return a line per row."""
    head = f"{'pass':9} {'system':42} {'batch':>5} {'cache':>7}"
    lines = [head + "".join(f" {name:>12}" for name, _, _ in _COLUMNS)]
    for row in rows:
        numbers = "".join(f" {factor * row.numbers[key]:12.1f}" for _, key, factor in _COLUMNS)
        lines.append(f"{row.timing:9} {SYSTEMS[row.system]:42} {row.batch_size:5} {row.cache_tokens:7}{numbers}")
    return "\n".join(lines)


def write_rows(path: Path, rows: Sequence[Row], options: argparse.Namespace, workload: Workload) -> None:
    """Write the rows with their raw samples as JSON, a row per line."""
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "plot", "quiet", "path")}
    head = {
        "format": FORMAT,
        "settings": settings | {"path": options.path.name if options.path else None},
        "machine": describe_machine(),
        "load": {
            "requests": len(workload.requests),
            "prompt_tokens": sum(len(request.prompt) for request in workload.requests),
            "output_tokens": sum(len(request.output) for request in workload.requests),
            "trie_edges": workload.trie.num_edges,
        },
    }
    write_results(path, head | {"rows": [asdict(row) | _rounded(row) | {"numbers": row.numbers} for row in rows]})


def _rounded(row: Row) -> dict[str, list[float]]:
    return {
        name: [float(f"{value:.{_SIGNIFICANT_DIGITS}g}") for value in getattr(row, name)]
        for name in ("ttft_seconds", "tpot_seconds")
    }


def _conversations(options: argparse.Namespace) -> list[list[Conversation]]:
    if options.dataset == "sharegpt":
        return split(read_sharegpt_conversations(options.path), options.train, options.count)
    population = Population(options.seed)
    return [population.draw("train", options.train), population.draw("served", options.count)]


def _draw(rows: Sequence[Row], plan: Plan, options: argparse.Namespace) -> None:
    from bench.prefix.plot import draw_prefix

    served = "requests" if options.dataset == "mooncake" else "conversations"
    for timing in options.timings:
        title = (
            f"Prefix caches and schedulers, Llama-65B on an A100, a pass takes what the {timing} says\n"
            f"{options.dataset}, {options.count} {served}, trie of {options.train} others; throughput is"
            f" saturated, the rest at {options.load:g} of what the note's engine bears without a cache"
        )
        path = options.plot.with_stem(f"{options.plot.stem}_{timing}")
        draw_prefix([row for row in rows if row.timing == timing], plan, title, path)


if __name__ == "__main__":
    sys.exit(main())
