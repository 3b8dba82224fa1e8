"""Two nodes under Poisson load: throughput, TTFT and TPOT beside a request alone and beside what formulas allow.

Run as `baton bench load --out bench/results/load.json`; as root with `--link 10` across two hosts and a shaped link.
The utilisation of every load is printed first, by formula. Rows in which the host's own CPU was above 85 % say so, and
do not count; slower nodes are the remedy. `--at-once 6 --host-rate 1` runs rows side by side, each on a pair of its own
whose time is stretched so far that it gets a request per second of this host's. The file is written after every row.
METHODOLOGY.md defines the numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from subprocess import CalledProcessError
from threading import Lock
from typing import NamedTuple

from bench.load.deployment import DEPLOYMENTS, Pair
from bench.load.measure import Load, Turns, measure_loads
from bench.load.row import HEAD, MIN_SHARE_OF_BEST, Row, compare_deployments, line
from bench.local_cluster import DEMO_MODEL
from bench.options import at_least, engine_pair, list_of, positive, say
from bench.results_file import describe_machine, write_results

FORMAT = "baton-bench-load/1"


class Run(NamedTuple):
    """What is measured on one run of a pair's processes, one load after the other."""

    pair: Pair
    loads: list[Load]
    """1 or more."""

    def seconds(self, count: int) -> float:
        """Return how long the loads last, of so many requests each."""
        return self.pair.time_scale * sum(count / load.rate for load in self.loads)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table as it grows, write the files; 1 if a row is not as good as it shall be."""
    options = _parser().parse_args(arguments)
    if options.at_once > 1 and (options.link or "mock" not in options.engines):
        _parser().error("--at-once: there is one shaped link, and real engines share the cores")
    runs, rows = plan_runs(options), list[Row]()
    lasting = [run.seconds(options.count) for run in runs]
    minutes = max(max(lasting), sum(lasting) / options.at_once) / 60
    num_rows = sum(len(run.loads) for run in runs)
    told = f"{num_rows} rows of {options.count} requests, {options.seeds} seeds, on {len(runs)} pairs"
    say(f"{told}, {options.at_once} at once: {minutes:.0f} min")
    print(HEAD, flush=True)
    _measure(runs, options, rows)
    for compared in compare_deployments(rows):
        load = f"{compared['rate']:g}/s, {compared['num_output_tokens']} out, time x {compared['time_scale']:g}"
        print(f"{load}: share of the best deployment's throughput / end-to-end: {_told(compared['shares'])}")
    return 1 if any(row.failures or row.num_failed for row in rows if not row.is_busy) or not rows else 0


def plan_runs(options: argparse.Namespace) -> list[Run]:
    """Return what is measured on which pairs, longest first: as many as run at once, where there are so many loads."""
    loads: dict[Pair, list[Load]] = {}
    for name, rate in product(options.deployment, options.rates):
        stretch = rate / options.host_rate if options.host_rate and "mock" in options.engines else 0.0
        pair = Pair(name, tuple(options.engines), max(options.time_scale, stretch), options.link)
        loads.setdefault(pair, []).extend(Load(rate, num_tokens) for num_tokens in options.outputs)
    runs = [Run(*each) for each in loads.items()]
    while len(runs) < options.at_once and (several := [run for run in runs if len(run.loads) > 1]):
        longest = max(several, key=lambda run: run.seconds(options.count))
        runs.remove(longest)
        runs += [Run(longest.pair, longest.loads[::2]), Run(longest.pair, longest.loads[1::2])]
    return sorted(runs, key=lambda run: -run.seconds(options.count))


def _measure(runs: Sequence[Run], options: argparse.Namespace, rows: list[Row]) -> None:
    """Measure runs beside each other, where they share neither link nor cores; print and write every row."""
    writing, full = Lock(), dict[int, float]()

    def measure(run: Run, turns: Turns) -> None:
        try:
            for row in measure_loads(run.pair, run.loads, options, full, turns):
                with writing:
                    rows.append(row)
                    print(line(row), flush=True)
                    if options.out:
                        _write(options, rows)
        except (RuntimeError, TimeoutError, OSError, CalledProcessError) as error:
            say(f"{run.pair.deployment}: given up: {error}")

    if options.link or "mock" not in options.engines:
        for run in runs:
            measure(run, Turns(1, 1))
        return
    turns = Turns(len(runs), options.at_once)
    with ThreadPoolExecutor(len(runs)) as executor:
        list(executor.map(lambda run: measure(run, turns), runs))


def _told(shares: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(
        f"{name} {share['throughput']:.2f} / {share['e2e']:.2f}"
        + ("" if min(share.values()) >= MIN_SHARE_OF_BEST else f" (below {MIN_SHARE_OF_BEST})")
        for name, share in shares.items()
    )


def _write(options: argparse.Namespace, rows: Sequence[Row]) -> None:
    settings = {name: value for name, value in vars(options).items() if name not in ("model", "out")}
    head = {"format": FORMAT, "machine": describe_machine(), "settings": settings}
    compared = compare_deployments(rows)
    write_results(options.out, {**head, "compared": compared, "rows": [row.document() for row in rows]})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="baton bench load", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model folder; default: the demo model")
    parser.add_argument("--rates", type=list_of(positive), default=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], help=_RATES_HELP)
    parser.add_argument("--outputs", type=list_of(at_least(2)), default=[16, 32, 64], help="output tokens (16,32,64)")
    parser.add_argument("--prompt-tokens", type=at_least(1), default=2000, help="of each request (%(default)s)")
    parser.add_argument("--count", type=at_least(2), default=402, help="requests of a row, all seeds (%(default)s)")
    parser.add_argument("--seeds", type=at_least(1), default=3, help="runs of a row (%(default)s)")
    parser.add_argument("--link", type=float, default=0.0, help="Gb/s of a shaped link between two hosts; needs root")
    parser.add_argument("--engines", type=engine_pair, default=("mock", "mock"), help="of the two nodes (mock,mock)")
    parser.add_argument(
        "--deployment", type=_deployments, default=["disaggregated"], help=f"one or several of {','.join(DEPLOYMENTS)}"
    )
    parser.add_argument("--time-scale", type=positive, default=1.0, help="how much slower mocks are (%(default)s)")
    parser.add_argument("--host-rate", type=positive, help=_HOST_RATE_HELP)
    parser.add_argument("--at-once", type=at_least(1), default=1, help="pairs that are loaded at once (%(default)s)")
    parser.add_argument("--out", type=Path, help="JSON with all samples")
    return parser


_HOST_RATE_HELP = "requests per second of the host's clock that a pair gets at most: time is stretched to it (no limit)"
_RATES_HELP = "requests per second (1,2,3,4,5,6); of real engines 6 stands for what they can do at most"


def _deployments(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in DEPLOYMENTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(DEPLOYMENTS)}, got {unknown[0]!r}")
    return names


if __name__ == "__main__":
    sys.exit(main())
