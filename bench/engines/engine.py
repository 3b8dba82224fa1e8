"""How much of a core an engine needs per token, beside other engines and what the core could do at best.

Run as `baton bench engine --out bench/results/engine_cpu.json --plot bench/results/engine_cpu.png`. Every
engine has one thread and the same random model of SmolLM-135M's shape; in every round each of them in turn does each
case; `--cases`, `--systems` and `--dtypes` measure a part, which joins what `--out` holds already, a number format at a
time. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.engines.case import CASES, CONTEXT, Case
from bench.engines.models import flops, step_bytes, step_flops, write_model
from bench.engines.systems import OtherEngine, System, running_baton
from bench.plots import new_figure
from bench.processes import HOME, ONE_THREAD, running_child
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-engine/1"
BATON = "baton"
DTYPES: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
"""Bytes of one element."""
SYSTEMS = (BATON, "transformers", "transformers-cb", "llama.cpp")
_NUM_BLOCKS = 48 * 1024 // 16
_SLOW, _SLOW_PROMPTS = "transformers-cb", 2
"""Computes the prompts of decoding anew in each run: with more of them it does a case in one round."""


@dataclass(slots=True)
class Row:
    """All rounds of one engine in one case."""

    dtype: str
    case: str
    system: str
    cpu_seconds: list[float] = field(default_factory=list)
    """Of each round."""
    num_counted: int = 0
    """Tokens of one round."""
    roofline: list[float] = field(default_factory=list)
    """Tokens per CPU-second that the core could reach at best, by the rates of the same round."""
    baton_cpu_seconds: list[float] = field(default_factory=list)
    """What Baton took in the same rounds."""

    def rates(self) -> list[float]:
        """Return the tokens per CPU-second of each round."""
        return [self.num_counted / seconds for seconds in self.cpu_seconds]

    def share(self) -> float:
        """Return the median share of the roofline."""
        return statistics.median(rate / best for rate, best in zip(self.rates(), self.roofline, strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, write the files; 1 if it could not be measured."""
    options = _parser().parse_args(arguments)
    rows = read_rows(options.out) if options.out and options.out.exists() else []
    try:
        for measured in _measure(options):
            rows = merged(rows, measured)
            if options.out:
                write_rows(options.out, rows)
    except (OSError, RuntimeError) as error:
        print(f"baton bench engine: {error}", file=sys.stderr)
        return 1
    Console(width=150).print(table_of(rows))
    if options.plot:
        draw_engines(rows, options.plot)
    return 0


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write the JSON, a row per line."""
    head = {"format": FORMAT, "machine": describe_machine(), "cases": [case._asdict() for case in CASES]}
    told = [
        {**asdict(row), "tokens_per_cpu_second": statistics.median(row.rates()), "share": row.share()} for row in rows
    ]
    write_results(path, head | {"rows": told})


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file that `write_rows` wrote."""
    names = [entry.name for entry in fields(Row)]
    return [Row(**{name: row[name] for name in names}) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]


def merged(old: Sequence[Row], measured: Sequence[Row]) -> list[Row]:
    """Return all rows, those that were measured again in the place of the old ones."""
    rows = {(row.dtype, row.case, row.system): row for row in (*old, *measured)}
    return list(rows.values())


def roofline(case: Case, dtype: str, rates: Mapping[str, float]) -> float:
    """Return the tokens per second of a core that only multiplies, or only reads, whichever takes longer.

    Args:
        case: What is computed.
        dtype: Of weights and cache.
        rates: `flops`, FLOP/s of the model's largest product; `bytes_per_second` read.
    """
    if not case.is_decoding:
        return case.num_prompt_tokens * rates["flops"] / flops(case.num_prompt_tokens)
    num_bytes = step_bytes(case.num_prompts, CONTEXT, DTYPES[dtype])
    reading = num_bytes / rates["bytes_per_second"]
    return case.num_prompts / max(reading, step_flops(case.num_prompts, CONTEXT) / rates["flops"])


def ratio(row: Row) -> float:
    """Return how many times the row's tokens Baton computes in a CPU-second: the median of the rounds' ratios."""
    return statistics.median(other / own for own, other in zip(row.baton_cpu_seconds, row.cpu_seconds, strict=True))


def takes_part(system: str, case: Case, number: int) -> bool:
    """Return whether an engine does a case in a round; 0 warms up, with what is not itself measured but once."""
    if system == _SLOW and case.num_prompts > _SLOW_PROMPTS:
        return number == 1
    return 0 < number <= case.max_rounds or (number == 0 and case.max_rounds > 1)


def table_of(rows: Sequence[Row]) -> Table:
    """Return one line per dtype and engine, a column per case."""
    table = Table("dtype", "engine", *(case.name for case in CASES), title="tokens per CPU-second, one thread")
    for column in table.columns[2:]:
        column.justify = "right"
    for dtype in DTYPES:
        for system in SYSTEMS:
            chosen = {row.case: row for row in rows if (row.dtype, row.system) == (dtype, system)}
            if chosen:
                table.add_row(dtype, system, *(_cell(chosen.get(case.name)) for case in CASES))
    return table


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    rate = f"{statistics.median(row.rates()):.1f}"
    if row.system == BATON:
        return f"{rate} ({row.share():.2f} of best)"
    return f"{rate} (x{ratio(row):.2f})" if row.baton_cpu_seconds else rate


def _measure(options: argparse.Namespace) -> Iterator[list[Row]]:
    """Yield the rows of one number format after the other."""
    with ExitStack() as stack:
        model = options.model
        if model is None:
            model = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
            write_model(model)
        for dtype in options.dtypes:
            rows: list[Row] = []
            for told in _rounds(model, dtype, options, rows):
                print(told, file=sys.stderr, flush=True)
            yield [row for row in rows if row.cpu_seconds]


def _rounds(model: Path, dtype: str, options: argparse.Namespace, rows: list[Row]) -> Iterator[str]:
    """Measure with one dtype; yields the CPU seconds after each case. Rounds that warm up do not count."""
    with ExitStack() as stack:
        best = stack.enter_context(
            running_child([sys.executable, "-m", "bench.engines.children.roofline_child"], ONE_THREAD)
        )
        best.answer()
        systems = _start(model, dtype, options, stack)
        chosen = [case for case in CASES if case.name in options.cases]
        own = {
            (case, name): Row(dtype, case.name, name, num_counted=case.num_counted)
            for case in chosen
            for name in systems
        }
        rows += own.values()
        for number in range(1 - options.warm_up, options.repeat + 1):
            for case in chosen:
                running = {name: system for name, system in systems.items() if takes_part(name, case, number)}
                if not running:
                    continue
                rates = best.ask({"dtype": dtype})
                seconds = {name: system.measure(case, options.seed + number) for name, system in running.items()}
                if number > 0:
                    for name, taken in seconds.items():
                        row = own[case, name]
                        row.cpu_seconds.append(taken)
                        row.roofline.append(roofline(case, dtype, rates))
                        row.baton_cpu_seconds += [seconds[BATON]] if BATON in seconds else []
                yield f"{dtype} {case.name} " + " ".join(f"{name}={taken:.3f}" for name, taken in seconds.items())


def _start(model: Path, dtype: str, options: argparse.Namespace, stack: ExitStack) -> dict[str, System]:
    """Start the engines that were asked for."""

    def engine(*command: str) -> OtherEngine:
        return OtherEngine(stack.enter_context(running_child(command, ONE_THREAD)))

    started: dict[str, System] = {}
    for name in options.systems:
        if name == BATON:
            node = running_baton(model, dtype, num_blocks=_NUM_BLOCKS, max_batch_size=32)
            started[name] = stack.enter_context(node)
        elif name == "llama.cpp":
            if options.llama_python is None:
                raise RuntimeError("llama.cpp needs --llama-python: an environment with llama-cpp-python and gguf")
            program = HOME / "bench/engines/children/llama_cpp_child.py"
            started[name] = engine(str(options.llama_python), str(program), str(model), dtype)
        else:
            way = "forward" if name == "transformers" else "batching"
            started[name] = engine(
                sys.executable, "-m", "bench.engines.children.transformers_child", way, str(model), dtype
            )
    return started


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench engine", description=__doc__)
    parser.add_argument("--model", type=Path, help="model folder of the same shape; default: one is written")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(DTYPES), default=list(DTYPES))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=[BATON, "transformers", "transformers-cb"])
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--llama-python", type=Path, help="python that has llama-cpp-python and gguf")
    parser.add_argument("--repeat", type=int, default=3, help="rounds that count")
    parser.add_argument("--warm-up", type=int, choices=(0, 1), default=1, help="rounds before them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, help="JSON with all raw samples; what is in it already and not measured again stays"
    )
    parser.add_argument("--plot", type=Path, help="PNG")
    return parser


def draw_engines(rows: Sequence[Row], path: Path) -> None:
    """Write a PNG: a line of panels per dtype, a panel per case that was measured."""
    dtypes = list(dict.fromkeys(row.dtype for row in rows))
    cases = [case for case in CASES if any(row.case == case.name for row in rows)]
    figure = new_figure(14, 3.4 * len(dtypes))
    panels = figure.subplots(len(dtypes), len(cases), squeeze=False)
    for line, dtype in zip(panels, dtypes, strict=True):
        for axes, case in zip(line, cases, strict=True):
            _draw_case(axes, [row for row in rows if (row.dtype, row.case) == (dtype, case.name)])
            axes.set_title(case.name)
        line[0].set_ylabel(f"{dtype}\ntokens per CPU-second")
    figure.suptitle("One thread, 135M Llama shape; dashed: what the core could do at best")
    figure.savefig(path)


def _draw_case(axes: Any, rows: Sequence[Row]) -> None:
    for row in rows:
        place = SYSTEMS.index(row.system)
        rates = row.rates()
        middle = statistics.median(rates)
        spread = [[middle - min(rates)], [max(rates) - middle]]
        bars = axes.bar([place], [middle], yerr=spread, capsize=3, color=f"C{place}")
        axes.bar_label(bars, fmt="%.0f" if middle >= 100 else "%.1f", fontsize=8, label_type="center", color="white")
    for row in rows[:1]:
        axes.axhline(statistics.median(row.roofline), linestyle="--", color="black", linewidth=1)
    axes.set_xticks(range(len(SYSTEMS)), SYSTEMS, rotation=30, ha="right", fontsize=7)


if __name__ == "__main__":
    sys.exit(main())
