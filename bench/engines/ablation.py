"""What each lesson of the engine's asynchronous core is worth: all on, each off by itself, all off.

Run as `python -m bench.engines.ablation --out bench/results/ablation.json --plot bench/results/ablation.png`. Every
case is a process of its own that measures the variants in turn, round by round. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.engines.small_model import write_small_model
from bench.machine import describe_machine
from bench.options import program

FORMAT = "baton-bench-ablation/1"
VARIANTS = (
    "all",
    "no run ahead",
    "one step a launch",
    "one step, no run ahead",
    "one step, no reuse",
    "no reuse",
    "row by row",
    "event per token",
    "none",
)
"""As `python -m bench.microbench.engine` names them."""
METRICS = ("tokens_per_second", "tpot_seconds", "host_seconds", "process_seconds")


class Case(NamedTuple):
    """A batch on a device."""

    name: str
    arguments: tuple[str, ...]
    """Of the gauge."""


CASES = (
    Case("mock 2 ms, batch 1", ("--batch-size", "1", "--step-seconds", "0.002", "--passes", "200")),
    Case("mock 2 ms, batch 32", ("--batch-size", "32", "--step-seconds", "0.002", "--passes", "200")),
    Case("mock 4 ms, batch 256", ("--batch-size", "256", "--step-seconds", "0.004", "--passes", "100")),
    Case(
        "mock 2 ms, batch 32, drawn",
        ("--batch-size", "32", "--step-seconds", "0.002", "--passes", "100", "--temperature", "0.8"),
    ),
    Case("torch CPU, batch 8", ("--engine", "torch", "--batch-size", "8", "--passes", "300")),
)

Samples = Mapping[str, Sequence[float]]
"""By metric, one value per round."""


class Row(NamedTuple):
    """A variant in a case."""

    case: str
    variant: str
    samples: Samples

    def median(self, metric: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.samples[metric])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the files; 1 if it could not be measured."""
    options = _parser().parse_args(arguments)
    try:
        rows = _measure(options.rounds)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"bench.engines.ablation: {error}", file=sys.stderr)
        return 1
    Console(width=130).print(table_of(rows))
    if options.out:
        document = {
            "format": FORMAT,
            "machine": describe_machine(),
            "command": f"python -m bench.engines.ablation --rounds {options.rounds}",
            "rows": [{**row._asdict(), "median": {metric: row.median(metric) for metric in METRICS}} for row in rows],
        }
        options.out.write_text(_compact(document), encoding="utf-8")
    if options.plot:
        from bench.engines.ablation_plot import draw_ablation

        draw_ablation(rows, options.plot)
    return 0


def ratio(rows: Sequence[Row], row: Row, metric: str) -> float:
    """Return how many times the value of all lessons on a variant has: the median of the rounds' ratios."""
    whole = next(each for each in rows if (each.case, each.variant) == (row.case, "all"))
    return statistics.median(own / other for own, other in zip(row.samples[metric], whole.samples[metric], strict=True))


def table_of(rows: Sequence[Row]) -> Table:
    """Return a line per case and variant."""
    table = Table(
        "case",
        "variant",
        "tokens/s",
        "TPOT ms",
        "host ms per pass",
        "CPU ms per pass",
        title="lessons of the asynchronous core",
    )
    for row in rows:
        table.add_row(
            row.case,
            row.variant,
            f"{row.median('tokens_per_second'):.0f} (x{ratio(rows, row, 'tokens_per_second'):.2f})",
            f"{1000 * row.median('tpot_seconds'):.3f}",
            f"{1000 * row.median('host_seconds'):.4f} (x{ratio(rows, row, 'host_seconds'):.2f})",
            f"{1000 * row.median('process_seconds'):.3f} (x{ratio(rows, row, 'process_seconds'):.2f})",
        )
    return table


def rows_of(case: str, lines: Sequence[str]) -> list[Row]:
    """Return the rows of what the gauge printed."""
    measured = [json.loads(line) for line in lines]
    return [
        Row(
            case,
            variant,
            {metric: [each[metric] for each in measured if each["variant"] == variant] for metric in METRICS},
        )
        for variant in VARIANTS
    ]


def _measure(num_rounds: int) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        write_small_model(Path(folder))
        for case in CASES:
            command = [sys.executable, "-m", "bench.microbench.engine", folder, "--rounds", str(num_rounds)]
            done = subprocess.run([*command, *case.arguments], check=True, stdout=subprocess.PIPE, text=True)
            rows += rows_of(case.name, done.stdout.splitlines())
    return rows


def _compact(document: object) -> str:
    """Return JSON with a row a line."""
    text = json.dumps(document)
    return text.replace('{"case"', '\n{"case"').replace('"rows"', '\n"rows"') + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program("ablation"), description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count")
    parser.add_argument("--out", type=Path, help="JSON with all raw samples")
    parser.add_argument("--plot", type=Path, help="PNG")
    return parser


if __name__ == "__main__":
    sys.exit(main())
