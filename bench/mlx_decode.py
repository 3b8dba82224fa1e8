"""Decoding by Baton's engine on MLX beside mlx-lm's BatchGenerator, from KV that is there already.

Run as `python -m bench.mlx_decode --out bench/results/mlx_decode.json --plot bench/results/mlx_decode.png`; both have
one thread and inherit the environment, in which OpenBLAS is to be preloaded on Linux. METHODOLOGY.md defines the
numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.engines.model import write_model
from bench.engines.systems import running_child
from bench.machine import describe_machine
from bench.option_values import program

FORMAT = "baton-bench-mlx-decode/1"
BATON, MLX_LM = "baton", "mlx-lm"


class Case(NamedTuple):
    """One measurement."""

    name: str
    size: int
    """Requests at once, each with a context of 512 tokens."""
    num_tokens: int
    """Of each."""
    num_joins: int
    """Requests that join, each when another one has left."""


CASES = (Case("d1", 1, 24, 0), Case("d8", 8, 16, 0), Case("d32", 32, 10, 0), Case("joins", 8, 16, 12))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the files."""
    options = _parser().parse_args(arguments)
    samples = _measure(options)
    Console(width=120).print(_table(samples))
    document = {
        "format": FORMAT,
        "machine": describe_machine(),
        "settings": {"rounds": options.repeat, "context": 512, "cases": [case._asdict() for case in CASES]},
        "ratios": {case.name: ratio(samples, case.name) for case in CASES},
        "samples": samples,
    }
    if options.out:
        options.out.write_text(compact(document), encoding="utf-8")
    if options.plot:
        from bench.mlx_decode_plot import draw

        draw(samples, options.plot)
    return 0


def rates(samples: Sequence[dict[str, Any]], case: str, system: str) -> list[float]:
    """Return the tokens per CPU-second of each round."""
    chosen = [sample for sample in samples if (sample["case"], sample["system"]) == (case, system)]
    return [sample["tokens"] / sample["cpu_seconds"] for sample in chosen]


def ratio(samples: Sequence[dict[str, Any]], case: str) -> float:
    """Return how many times mlx-lm's tokens Baton computes in a CPU-second: the median of the rounds' ratios."""
    pairs = zip(rates(samples, case, BATON), rates(samples, case, MLX_LM), strict=True)
    return round(statistics.median(own / other for own, other in pairs), 3)


def worst_gap(sample: dict[str, Any]) -> float:
    """Return the longest time between two passes, in median times between passes."""
    gaps = sample["gaps"]
    return float(max(gaps) / statistics.median(gaps))


def compact(document: dict[str, Any]) -> str:
    """Return JSON with one line per sample."""
    samples = ",\n  ".join(json.dumps(sample) for sample in document.pop("samples"))
    return json.dumps(document, indent=1)[:-2] + f',\n "samples": [\n  {samples}\n ]\n}}\n'


def _measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Ask both in turn, the order changing from round to round; the first round warms up and does not count."""
    samples: list[dict[str, Any]] = []
    with ExitStack() as stack:
        model = options.model
        if model is None:
            model = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
            write_model(model)
        commands = {
            BATON: [sys.executable, "-m", "baton.engine.runners.mlx.gauge", str(model)],
            MLX_LM: [sys.executable, "bench/engines/mlx_lm_child.py", str(model)],
        }
        children = {name: stack.enter_context(running_child(command)) for name, command in commands.items()}
        for number in range(options.repeat + 1):
            for case in CASES:
                for name in sorted(children, reverse=bool(number % 2)):
                    asked: dict[str, object] = {**case._asdict(), "seed": number}
                    answer: dict[str, Any] = dict(children[name].ask({k: v for k, v in asked.items() if k != "name"}))
                    if number:
                        samples.append({"case": case.name, "system": name, "round": number, **answer})
    return samples


def _table(samples: Sequence[dict[str, Any]]) -> Table:
    table = Table("case", BATON, MLX_LM, "ratio", title="tokens per CPU-second, 135M Llama shape, context 512")
    for case in CASES:
        medians = [f"{statistics.median(rates(samples, case.name, name)):.1f}" for name in (BATON, MLX_LM)]
        table.add_row(case.name, *medians, f"{ratio(samples, case.name):.2f}")
    joins = {
        name: statistics.median(worst_gap(s) for s in samples if (s["case"], s["system"]) == ("joins", name))
        for name in (BATON, MLX_LM)
    }
    table.add_row("longest gap, steps", f"{joins[BATON]:.1f}", f"{joins[MLX_LM]:.1f}", "")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=program("mlx-decode"), description=__doc__)
    parser.add_argument("--model", type=Path, help="model folder of the 135M shape; default: one is written")
    parser.add_argument("--repeat", type=int, default=5, help="rounds that count")
    parser.add_argument("--out", type=Path, help="JSON with all raw samples")
    parser.add_argument("--plot", type=Path, help="PNG")
    return parser


if __name__ == "__main__":
    sys.exit(main())
