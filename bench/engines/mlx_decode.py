"""Decoding on MLX: Baton's engine beside mlx-lm's BatchGenerator; `baton bench full-stack` compares the servers.

Run as `baton bench mlx-decode --out bench/results/mlx_decode.json --plot bench/results/mlx_decode.png`; both have one
thread and inherit the environment, in which OpenBLAS is to be preloaded on Linux. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.engines.models import write_model
from bench.plots import new_figure
from bench.processes import HOME, ONE_THREAD, running_child
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-mlx-decode/3"
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


JOINS = {"landed": 0, "prompt of 64": 64}
"""Prompt tokens of who joins, by how it joins; 0: its KV is there."""
_JOIN_SIZE, _NUM_JOINS, _JOIN_STEPS = 8, 3, 4
CASES = (Case("d1", 1, 24, 0), Case("d8", 8, 16, 0), Case("d32", 32, 10, 0), Case("joins", 8, 16, 12))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables, write the files."""
    options = _parser().parse_args(arguments)
    with ExitStack() as stack:
        model = options.model
        if model is None:
            model = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
            write_model(model)
        samples, joins = _measure(model, options.repeat)
    Console(width=120).print(_table(samples, joins))
    document = {
        "format": FORMAT,
        "machine": describe_machine(),
        "settings": {"rounds": options.repeat, "context": 512, "cases": [case._asdict() for case in CASES]},
        "ratios": {case.name: ratio(samples, case.name) for case in CASES},
        "join_steps": {f"{sample['system']}, {sample['join']}": sample["join_steps"] for sample in joins},
        "samples": samples + joins,
    }
    if options.out:
        write_results(options.out, document)
    if options.plot:
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


def join_steps(gaps: Sequence[float], marks: Sequence[int]) -> list[float]:
    """Return how much longer the steps after each join took than as many at other times, in median steps.

    Args:
        gaps: Times between the ends of steps, seconds.
        marks: Steps that had ended when somebody joined.
    """
    step = statistics.median(gaps)
    return [round(sum(gaps[mark - 1 : mark - 1 + _JOIN_STEPS]) / step - _JOIN_STEPS, 3) for mark in marks]


def worst_gap(sample: dict[str, Any]) -> float:
    """Return the longest time between two passes, in median times between passes."""
    gaps = sample["gaps"]
    return float(max(gaps) / statistics.median(gaps))


def _measure(model: Path, num_rounds: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Ask both engines in turn, the order changing from round to round; a first, shorter round warms up.

    Returns:
        Samples of the cases, and what joins cost in steps.
    """
    samples: list[dict[str, Any]] = []
    joins: list[dict[str, Any]] = []
    commands = {
        BATON: [sys.executable, "-m", "bench.microbench.mlx_decode", str(model)],
        MLX_LM: [sys.executable, str(HOME / "bench/engines/mlx_lm_child.py"), str(model)],
    }
    with ExitStack() as stack:
        children = {name: stack.enter_context(running_child(command, ONE_THREAD)) for name, command in commands.items()}
        for child in children.values():
            child.answer()
        for number in range(num_rounds + 1):
            for case in CASES:
                for name in sorted(children, reverse=bool(number % 2)):
                    counted = case._asdict() if number else case._replace(num_tokens=4)._asdict()
                    del counted["name"]
                    answer: dict[str, Any] = dict(children[name].ask({**counted, "seed": number}))
                    if number:
                        samples.append({"case": case.name, "system": name, "round": number, **answer})
        for join, prompt_tokens in JOINS.items():
            question = {"size": _JOIN_SIZE, "prompt_tokens": prompt_tokens, "num_joins": _NUM_JOINS, "seed": 1}
            for name, child in children.items():
                answer = dict(child.ask({**question, "num_steps": _JOIN_STEPS}))
                joins.append({"system": name, "join": join, "join_steps": join_steps(**answer), **answer})
    return samples, joins


def _table(samples: Sequence[dict[str, Any]], joins: Sequence[dict[str, Any]]) -> Table:
    table = Table("case", BATON, MLX_LM, "ratio", title="tokens per CPU-second, 135M Llama shape, context 512")
    for case in CASES:
        medians = [f"{statistics.median(rates(samples, case.name, name)):.1f}" for name in (BATON, MLX_LM)]
        table.add_row(case.name, *medians, f"{ratio(samples, case.name):.2f}")
    gaps = [
        statistics.median(worst_gap(s) for s in samples if (s["case"], s["system"]) == ("joins", name))
        for name in (BATON, MLX_LM)
    ]
    table.add_row("longest gap, steps", *(f"{gap:.1f}" for gap in gaps), "")
    for join in JOINS:
        costs = {each["system"]: statistics.median(each["join_steps"]) for each in joins if each["join"] == join}
        table.add_row(f"join, {join}: steps", *(f"{costs[name]:.2f}" for name in (BATON, MLX_LM)), "")
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench mlx-decode", description=__doc__)
    parser.add_argument("--model", type=Path, help="model folder of the 135M shape; default: one is written")
    parser.add_argument("--repeat", type=int, default=3, help="rounds that count")
    parser.add_argument("--out", type=Path, help="JSON with all raw samples")
    parser.add_argument("--plot", type=Path, help="PNG")
    return parser


def draw(samples: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a PNG: a panel per case, the median of the rounds and their spread."""
    figure = new_figure(11, 3.4)
    panels = figure.subplots(1, len(CASES))
    for axes, case in zip(panels, CASES, strict=True):
        for place, name in enumerate((BATON, MLX_LM)):
            values = rates(samples, case.name, name)
            middle = statistics.median(values)
            spread = [[middle - min(values)], [max(values) - middle]]
            bars = axes.bar([place], [middle], yerr=spread, capsize=3, color=f"C{place}")
            axes.bar_label(bars, fmt="%.1f", fontsize=8, label_type="center", color="white")
        axes.set_xticks((0, 1), (BATON, MLX_LM), fontsize=8)
        axes.set_title("8 at once, 12 join and leave" if case.num_joins else f"{case.size} at once")
    panels[0].set_ylabel("tokens per CPU-second")
    figure.suptitle("Decoding on MLX (CPU, float32, one thread), 135M Llama shape, context 512")
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
