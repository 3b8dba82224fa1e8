"""How long a prompt takes whose KV is in the pool, in host memory, on disk, or nowhere: through the engine.

Run as `baton bench kv-tiers --out bench/results/kv_tiers.json --plot bench/results/kv_tiers.png`. The four are
measured in turn, round by round, on one CPU thread; METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.engines.models import write_small_model
from bench.plots import new_figure
from bench.processes import answers_of
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-kv-tiers/1"
TIERS = ("device", "host", "disk", "computed")
"""As `python -m bench.microbench.engine.kv_tiers` names them."""
SHAPE = {
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
}


class Row(NamedTuple):
    """Prompts of one length whose KV was in one place."""

    num_tokens: int
    tier: str
    ttft_seconds: list[float]
    """One per round."""
    num_cached_tokens: list[int]
    """What the engine took over, one per round."""


def measure(lengths: Sequence[int], num_rounds: int, shape: Mapping[str, int] = SHAPE) -> list[Row]:
    """Return the rows, of a model of random weights in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        write_small_model(Path(folder), shape)
        command = [sys.executable, "-m", "bench.microbench.engine.kv_tiers", "--model", folder]
        command += ["--rounds", str(num_rounds), "--lengths", *map(str, lengths)]
        return [Row(**answer) for answer in answers_of(command)]


def speedup(rows: Sequence[Row], row: Row) -> float:
    """Return how many times sooner a prompt has its token than one that is computed: the median of the rounds."""
    computed = next(each for each in rows if (each.num_tokens, each.tier) == (row.num_tokens, "computed"))
    return statistics.median(other / own for own, other in zip(row.ttft_seconds, computed.ttft_seconds, strict=True))


def table_of(rows: Sequence[Row]) -> Table:
    """Return a line per length and tier."""
    table = Table("prompt tokens", "KV", "TTFT ms", "times sooner", "cached tokens", title="prefix cache tiers")
    for row in rows:
        table.add_row(
            str(row.num_tokens),
            row.tier,
            f"{1000 * statistics.median(row.ttft_seconds):.1f}",
            f"{speedup(rows, row):.1f}",
            f"{statistics.median(row.num_cached_tokens):.0f}",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the files."""
    parser = argparse.ArgumentParser(prog="baton bench kv-tiers", description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 1024, 3072])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args(arguments)
    rows = measure(options.lengths, options.rounds)
    Console(width=100).print(table_of(rows))
    if options.out:
        lengths = " ".join(map(str, options.lengths))
        command = f"baton bench kv-tiers --lengths {lengths} --rounds {options.rounds}"
        head = {"format": FORMAT, "machine": describe_machine(), "command": command, "shape": SHAPE}
        write_results(options.out, head | {"rows": [row._asdict() for row in rows]})
    if options.plot:
        draw_kv_tiers(rows, options.plot)
    return 0


def draw_kv_tiers(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: a group of bars per length, each with its range over the rounds."""
    lengths = sorted({row.num_tokens for row in rows})
    figure = new_figure(7, 4.2)
    axes = figure.subplots()
    for index, tier in enumerate(TIERS):
        chosen = [row for length in lengths for row in rows if (row.num_tokens, row.tier) == (length, tier)]
        medians = [1000 * statistics.median(row.ttft_seconds) for row in chosen]
        low = [median - 1000 * min(row.ttft_seconds) for median, row in zip(medians, chosen, strict=True)]
        high = [1000 * max(row.ttft_seconds) - median for median, row in zip(medians, chosen, strict=True)]
        places = [group + 0.2 * (index - 1.5) for group in range(len(lengths))]
        bars = axes.bar(places, medians, 0.19, yerr=[low, high], label=tier, color=f"C{index}", capsize=2)
        axes.bar_label(bars, [f"x{speedup(rows, row):.1f}" for row in chosen], fontsize=8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(lengths)), [str(length) for length in lengths])
    axes.set_xlabel("prompt tokens")
    axes.set_ylabel("time to first token, ms")
    axes.legend(title="KV from", fontsize=8)
    axes.set_title("Prefix cache tiers: times sooner than computed, one CPU thread", fontsize=10)
    figure.savefig(path)


if __name__ == "__main__":
    raise SystemExit(main())
