"""What narrower number formats of KV lose: agreement, logit error, and needles found by context length.

Run as `baton bench wire-precision --out bench/results/wire_precision.json --plot
bench/results/wire_precision.png`. Measured without a network, by a process of Baton that packs and unpacks KV as its
nodes do; METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.plots import new_figure
from bench.processes import answers_of
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-wire-precision/1"
_MODULE = "bench.microbench.wire_quality"


def measure(arguments: Sequence[str]) -> dict[str, Any]:
    """Return what the measuring process found.

    Raises:
        ChildFailedError: If it fails; its own words are on the terminal.
    """
    (document,) = answers_of([sys.executable, "-m", _MODULE, *arguments])
    return document


def quality_table(qualities: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Return a row per format, least and greatest figures over all models."""
    table = Table("wire", "models", "bytes", "top-1 agreement", "logit error", "divergence, nats")
    wires = dict.fromkeys(one["wire"] for rows in qualities.values() for one in rows)
    for wire in wires:
        rows = [one for model in qualities.values() for one in model if one["wire"] == wire]
        table.add_row(
            wire,
            str(len(rows)),
            *(_range(rows, key) for key in ("bytes_share", "top1_agreement", "logit_error", "divergence_nats")),
        )
    return table


def needle_table(needles: Sequence[Mapping[str, Any]]) -> Table:
    """Return needles found, a row per format and a column per context length."""
    lengths = list(dict.fromkeys(one["context_tokens"] for one in needles))
    table = Table("wire", *(f"{length} tokens" for length in lengths))
    for wire in dict.fromkeys(one["wire"] for one in needles):
        rows = [one for one in needles if one["wire"] == wire]
        table.add_row(wire, *(f"{one['num_right']} of {one['num_asked']}" for one in rows))
    return table


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(prog="baton bench wire-precision", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, action="append", default=[], help="model folder; may be given again")
    parser.add_argument("--engine", choices=("torch", "mlx"), default="torch", help="what computes")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights and cache")
    parser.add_argument("--num-needles", type=int, default=40, help="needles per context length; 0: none")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--plot", type=Path, help="PNG file to write")
    options = parser.parse_args()
    arguments = [f"--engine={options.engine}", f"--dtype={options.dtype}", f"--num-needles={options.num_needles}"]
    found = measure([*arguments, *(f"--model={folder}" for folder in options.model)])
    console = Console()
    console.print(quality_table(found["qualities"]))
    console.print(needle_table(found["needles"]))
    models = [f"--model {folder.name}" for folder in options.model]
    command = " ".join(["baton bench wire-precision", *arguments, *models])
    document = {"format": FORMAT, "command": command, "machine": describe_machine(), **found}
    if options.out:
        write_results(options.out, document)
    if options.plot:
        draw_wires(found, options.plot)


def _range(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    low, high = (f"{bound(row[key] for row in rows):.3g}" for bound in (min, max))
    return low if low == high else f"{low} to {high}"


def draw_wires(found: Mapping[str, Any], path: Path) -> None:
    """Draw both pictures side by side, a colour per format."""
    figure = new_figure(12, 5)
    errors, needles = figure.subplots(1, 2)
    rows = [*found["needles"], *(one for model in found["qualities"].values() for one in model)]
    wires = dict.fromkeys(one["wire"] for one in rows)
    colors = {wire: f"C{number}" for number, wire in enumerate(wires)}
    _draw_errors(errors, found, colors)
    _draw_needles(needles, found, colors)
    figure.suptitle(f"KV in narrower number formats on the wire ({found['engine']}, {found['dtype']} cache)")
    figure.savefig(path)


def _draw_errors(axes: Any, found: Mapping[str, Any], colors: Mapping[str, str]) -> None:
    """A dot per model and format, the demo model's, which is trained, as a star."""
    models = list(found["qualities"])
    for column, model in enumerate(models):
        is_trained = model == models[-1]
        for one in found["qualities"][model]:
            axes.plot(column, one["logit_error"], "*" if is_trained else "o", color=colors[one["wire"]])
    axes.set_xticks(range(len(models)), [*models[:-1], "demo\n(trained)"], rotation=60, ha="right")
    axes.set_yscale("log")
    axes.set_ylabel("logit error / standard deviation of logits")
    axes.set_title("after 160 tokens of context, 96 forced")
    axes.grid(alpha=0.3, axis="y")


def _draw_needles(axes: Any, found: Mapping[str, Any], colors: Mapping[str, str]) -> None:
    for number, (wire, color) in enumerate(colors.items()):
        rows = [one for one in found["needles"] if one["wire"] == wire]
        lengths = [one["context_tokens"] * (1 + 0.012 * (number - 3)) for one in rows]  # lines lie on each other
        shares = [one["num_right"] / one["num_asked"] for one in rows]
        if rows:
            axes.plot(lengths, shares, marker="o", color=color, label=wire)
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("needles found by the demo model")
    axes.set_title("one value among facts, all answer tokens right")
    axes.grid(alpha=0.3)
    axes.legend(title="wire, K/V")


if __name__ == "__main__":
    main()
