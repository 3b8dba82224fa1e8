"""Draws several runs of `baton bench serve` in one picture and prints their numbers.

Run as `baton bench compare A.json B.json --out compare.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.serve.plot import draw_runs
from bench.serve.report import read_run, table


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the runs, print a table of each, draw them."""
    parser = argparse.ArgumentParser(prog="baton bench compare", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="results of baton bench serve")
    parser.add_argument("--labels", help="names of the runs, separated by commas; default: those in the files")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    options = parser.parse_args(arguments)
    runs = [read_run(path) for path in options.runs]
    if options.labels:
        labels = options.labels.split(",")
        if len(labels) != len(runs):
            parser.error(f"{len(labels)} labels for {len(runs)} runs")
        runs = [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
    for run in runs:
        print(f"\n{run.label}\n{table(run.summary)}")
    draw_runs(runs, options.out)


if __name__ == "__main__":
    main()
