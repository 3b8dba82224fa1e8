"""What narrower number formats of KV lose: agreement, logit error, and needles found by context length.

Run as `baton bench wire-precision --out bench/results/wire_precision.json --plot
bench/results/wire_precision.png`. Measured without a network: KV is packed and unpacked as nodes do. Every answer token
is predicted from KV that went through the format, the first too, which a prefill node would sample from its own.
METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from baton.demo import checkpoint_dir
from baton.demo.evaluate import CONTEXT_LENGTHS, needle_row
from baton.engine.runners.base import Array, Runner
from baton.kv.kv_format import KvDtype, KvLayout, WireFormat, token_bytes, wire_dtypes
from baton.node.loading import load_runner
from baton.node.profiling.wire_formats import WireTrial, log_probabilities, mean_divergence
from baton.node.settings import EngineName, NodeSettings
from bench.plots import new_figure
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-wire-precision/1"

CONTEXT_TOKENS, CONTINUATION_TOKENS = 160, 96


@dataclass(frozen=True, slots=True)
class Quality:
    """What one format loses on one model, against KV that travelled as it was."""

    wire: str
    """Names of the formats of K and V."""
    bytes_share: float
    """Bytes on the wire, as a share of the cache's."""
    top1_agreement: float
    """Share of positions with the same most probable token."""
    logit_error: float
    """Root of the mean squared difference of logits, as a share of their standard deviation."""
    divergence_nats: float
    """Mean Kullback-Leibler divergence of the next token's distribution."""


@dataclass(frozen=True, slots=True)
class Needles:
    """Needles found at one context length through one format."""

    wire: str
    context_tokens: int
    num_right: int
    num_asked: int


def wire_formats(layout: KvLayout) -> list[WireFormat]:
    """Return what is compared: the cache's own format, each other for both, and K in 16 bits with V in 8."""
    own, *narrower = wire_dtypes(layout)
    sixteen = own if own.num_bytes == 2 else KvDtype.BFLOAT16
    both = [WireFormat(dtype, dtype) for dtype in (own, *narrower)]
    return [*both, WireFormat(sixteen, KvDtype.INT8)]


def name_of(wire: WireFormat) -> str:
    """Return a format's name as `kv_wire_dtype` takes it."""
    return wire.keys.value if wire.keys is wire.values else f"{wire.keys.value}/{wire.values.value}"


def measure_quality(prefill: Runner, decode: Runner, *, seed: int = 5) -> list[Quality]:
    """Return what every format loses where one runner hands over to another, on random tokens."""
    layout, draw = prefill.info.layout, random.Random(seed)
    token_ids = [draw.randrange(3, prefill.info.vocabulary_size) for _ in range(CONTEXT_TOKENS + CONTINUATION_TOKENS)]
    trial = WireTrial(prefill, decode, token_ids, CONTEXT_TOKENS)
    own, *others = wire_formats(layout)
    expected = trial.logits(own).copy()
    return [_compare(layout, wire, expected, trial.logits(wire)) for wire in others]


def measure_needles(runner: Runner, *, lengths: tuple[int, ...], num_needles: int, seed: int = 1) -> list[Needles]:
    """Return the needles that the demo model finds by context length, through every format."""
    draw, results = random.Random(seed), []
    for length in lengths:
        found = dict.fromkeys(wire_formats(runner.info.layout), 0)
        for _ in range(num_needles):
            row = needle_row(draw, length)
            first_answer = row.is_target.index(True)
            trial = WireTrial(runner, runner, row.tokens[:-1], first_answer - 1)
            answer = np.array(row.tokens[first_answer:])
            for wire in found:
                found[wire] += int((trial.logits(wire).argmax(axis=1) == answer).all())
        results += [Needles(name_of(wire), length, count, num_needles) for wire, count in found.items()]
    return results


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
    found = measure(options)
    console = Console()
    console.print(quality_table(found["qualities"]))
    console.print(needle_table(found["needles"]))
    arguments = [f"--engine={options.engine}", f"--dtype={options.dtype}", f"--num-needles={options.num_needles}"]
    models = [f"--model {folder.name}" for folder in options.model]
    command = " ".join(["baton bench wire-precision", *arguments, *models])
    document = {"format": FORMAT, "command": command, "machine": describe_machine(), **found}
    if options.out:
        write_results(options.out, document)
    if options.plot:
        draw_wires(found, options.plot)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the formats lose on every model, and the needles of the demo model."""
    qualities, needles = dict[str, list[dict[str, Any]]](), list[Needles]()
    for directory in [*options.model, checkpoint_dir()]:
        runner = _load(directory, options.engine, options.dtype)
        qualities[directory.resolve().name] = [asdict(quality) for quality in measure_quality(runner, runner)]
        if directory == checkpoint_dir() and options.num_needles:
            needles += measure_needles(runner, lengths=CONTEXT_LENGTHS, num_needles=options.num_needles)
        runner.close()
    found = {"qualities": qualities, "needles": [asdict(one) for one in needles]}
    return {"engine": options.engine, "dtype": options.dtype, **found}


def _compare(layout: KvLayout, wire: WireFormat, expected: Array, actual: Array) -> Quality:
    own = WireFormat(layout.dtype, layout.dtype)
    return Quality(
        wire=name_of(wire),
        bytes_share=round(sum(token_bytes(layout, wire)) / sum(token_bytes(layout, own)), 4),
        top1_agreement=float((expected.argmax(-1) == actual.argmax(-1)).mean()),
        logit_error=float(np.sqrt(((expected - actual) ** 2).mean()) / expected.std()),
        divergence_nats=mean_divergence(log_probabilities(expected), log_probabilities(actual)),
    )


def _load(directory: Path, engine: EngineName, dtype: str) -> Runner:
    num_blocks = CONTEXT_LENGTHS[-1] // 16 + 8
    return load_runner(NodeSettings(model_dir=directory, engine=engine, dtype=dtype, num_blocks=num_blocks))  # type: ignore[arg-type]


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
