"""Two nodes under Poisson load: throughput, TTFT and TPOT beside a request alone and beside what formulas allow.

Run as `baton bench load --out bench/results/load.json`; as root with `--link 10` across two hosts and a shaped link.
The utilisation of every load is printed first, by formula. Rows in which the host's own CPU was above 85 % are
repeated with nodes four times slower. The file is written after every row. METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError
from threading import Lock
from typing import TypeVar

import baton.v1
from bench.load.deployment import DEPLOYMENTS, Pair
from bench.load.measure import Load, Turns, measure_loads, say
from bench.load.plot import draw_load
from bench.load.row import MIN_SHARE_OF_BEST, Row, compare_deployments, line
from bench.options import at_least, positive
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-load/1"
STRETCH = 4.0
"""How many times slower nodes are where the host was busy."""
_DEMO = Path(baton.v1.__file__).parent.parent / "demo" / "checkpoint"

NumberT = TypeVar("NumberT", int, float)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table as it grows, write the files; 1 if a row is not as good as it shall be."""
    options = _parser().parse_args(arguments)
    if options.side_by_side and options.link:
        _parser().error("--side-by-side: there is one shaped link")
    rows, full = list[Row](), dict[int, float]()
    loads = [Load(rate, num_tokens) for num_tokens in options.outputs for rate in options.rates]
    seconds = sum(options.count / load.rate for load in loads) * len(options.deployment) * options.time_scale
    seconds /= len(options.outputs) if options.side_by_side else 1
    told = f"{len(loads)} rows of {options.count} requests, {options.seeds} seeds"
    say(f"{told}: {seconds / 60:.0f} min; rows of a busy host once more, {STRETCH:g} times as long")
    for name in options.deployment:
        pair = Pair(name, tuple(options.engines), options.time_scale, options.link)
        _run_pair(pair, loads, options, rows, full)
    for compared in compare_deployments(rows):
        load = f"{compared['rate']:g}/s, {compared['num_output_tokens']} out, time x {compared['time_scale']:g}"
        print(f"{load}: share of the best deployment's throughput / end-to-end: {_told(compared['shares'])}")
    return 1 if any(row.failures or row.num_failed for row in rows if not row.is_busy) or not rows else 0


def _run_pair(
    pair: Pair, loads: Sequence[Load], options: argparse.Namespace, rows: list[Row], full: dict[int, float]
) -> None:
    """Measure all loads on a pair, and those that made the host busy once more on a slower one."""
    before = len(rows)
    _run_loads(pair, loads, options, rows, full)
    busy = [Load(row.rate, row.num_output_tokens) for row in rows[before:] if row.is_busy]
    if busy and "mock" in pair.engines and pair.time_scale < STRETCH and not options.no_repeat:
        say(f"the host was busy in {len(busy)} rows: once more, with time stretched {STRETCH:g} times")
        _run_loads(replace(pair, time_scale=STRETCH), busy, options, rows, full)


def _run_loads(
    pair: Pair, loads: Sequence[Load], options: argparse.Namespace, rows: list[Row], full: dict[int, float]
) -> None:
    """Measure loads one after the other, or those of different outputs side by side, on a pair for each."""
    writing = Lock()

    def run(some: Sequence[Load]) -> None:
        try:
            for row in measure_loads(pair, some, options, full, turns):
                with writing:
                    rows.append(row)
                    print(line(row), flush=True)
                    if options.out:
                        _write(options, rows)
        except (RuntimeError, TimeoutError, OSError, CalledProcessError) as error:
            say(f"{pair.deployment}: given up: {error}")

    outputs = dict.fromkeys(load.num_output_tokens for load in loads)
    groups = [[load for load in loads if load.num_output_tokens == output] for output in outputs]
    # Nodes that are four times slower leave the host time for three pairs; there is one shaped link.
    is_side_by_side = options.side_by_side or (pair.time_scale >= STRETCH and "mock" in pair.engines)
    groups = groups if is_side_by_side and not options.link else [list(loads)]
    turns = Turns(len(groups))
    if len(groups) == 1:
        run(groups[0])
    else:
        with ThreadPoolExecutor(len(groups)) as executor:
            list(executor.map(run, groups))


def _told(shares: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(
        f"{name} {share['throughput']:.2f} / {share['e2e']:.2f}"
        + ("" if min(share.values()) >= MIN_SHARE_OF_BEST else f" (below {MIN_SHARE_OF_BEST})")
        for name, share in shares.items()
    )


def _write(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    names = (
        "time_scale",
        "rates",
        "outputs",
        "count",
        "seeds",
        "first_seed",
        "prompt_tokens",
        "link",
        "engines",
        "deployment",
    )
    settings = {name: getattr(options, name) for name in names}
    head = {"format": FORMAT, "machine": describe_machine(), "settings": settings}
    compared = compare_deployments(rows)
    write_results(options.out, {**head, "compared": compared, "rows": [row.document() for row in rows]})
    draw_load(rows, options.out.with_suffix(".png"))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=_DEMO, help="model folder; default: the demo model")
    parser.add_argument("--rates", type=_list_of(positive), default=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], help=_RATES_HELP)
    parser.add_argument("--outputs", type=_list_of(at_least(2)), default=[16, 32, 64], help="output tokens (16,32,64)")
    parser.add_argument("--prompt-tokens", type=at_least(1), default=2000, help="of each request (%(default)s)")
    parser.add_argument("--count", type=at_least(2), default=402, help="requests of a row, all seeds (%(default)s)")
    parser.add_argument("--seeds", type=at_least(1), default=3, help="runs of a row (%(default)s)")
    parser.add_argument("--first-seed", type=at_least(0), default=0, help="of the runs (%(default)s)")
    parser.add_argument("--link", type=float, default=0.0, help="Gb/s of a shaped link between two hosts; needs root")
    parser.add_argument("--engines", type=_engines, default=("mock", "mock"), help="of the two nodes (mock,mock)")
    parser.add_argument(
        "--deployment", type=_deployments, default=["disaggregated"], help=f"one or several of {','.join(DEPLOYMENTS)}"
    )
    parser.add_argument("--time-scale", type=positive, default=1.0, help="how much slower mocks are (%(default)s)")
    parser.add_argument(
        "--side-by-side", action="store_true", help="rows of different outputs at once, on pairs of their own"
    )
    parser.add_argument("--no-repeat", action="store_true", help="no repetition with stretched time")
    parser.add_argument("--out", type=Path, help="JSON with all samples; a picture is drawn beside it")
    return parser


_RATES_HELP = "requests per second (1,2,3,4,5,6); of real engines 6 stands for what they can do at most"


def _list_of(kind: Callable[[str], NumberT]) -> Callable[[str], list[NumberT]]:
    def values(text: str) -> list[NumberT]:
        return [kind(part) for part in text.split(",")]

    return values


def _engines(text: str) -> tuple[str, ...]:
    engines = tuple(text.split(","))
    is_real = set(engines) <= {"torch", "mlx"}
    if len(engines) != 2 or not (is_real or set(engines) == {"mock"}):
        raise argparse.ArgumentTypeError(f"expected mock,mock or two of torch and mlx, got {text}")
    return engines


def _deployments(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in DEPLOYMENTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(DEPLOYMENTS)}, got {unknown[0]!r}")
    return names


if __name__ == "__main__":
    sys.exit(main())
