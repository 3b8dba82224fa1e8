"""`baton bench NAME`: measures a server from outside; each name is a module of the folder bench/.

The modules are clients like any other and no part of the package `baton`; nothing here imports them. They are started
as `python -m bench.NAME` would start them. A checkout has the folder at its root, an installation beside `baton` in
`baton_bench`, where its general name is in nobody's way.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import typer

import baton
from baton.errors import ConfigurationError
from baton.installation import install_line


class Benchmark(NamedTuple):
    """A module, what it does, in a line, the extras that it needs, and a folder beside bench/ where its package is."""

    module: str
    summary: str
    extras: tuple[str, ...] = ("bench",)
    folder: str = "."


BENCHMARKS: Mapping[str, Benchmark] = {
    "serve": Benchmark("bench.serve", "Load a server: TTFT, TPOT, ITL, throughput, goodput."),
    "load": Benchmark("bench.load", "Two nodes under Poisson load, beside a request alone and what formulas allow."),
    "prediction": Benchmark(
        "bench.prediction", "What placement predicted of a trace's requests, beside what happened."
    ),
    "overload": Benchmark("bench.overload", "More than nodes can do: goodput by policy, refusals, memory, fairness."),
    "gpu": Benchmark(
        "bench.microbench.torch",
        "The torch engine on a CUDA GPU beside its limits and transformers.",
        ("bench", "cuda"),
    ),
    "placement": Benchmark(
        "capacity.microbench", "What a decision costs the router, by nodes; in a checkout.", folder="tests"
    ),
    "shaped": Benchmark(
        "bench.links.shaped", "The hand-over across links of 1, 5 and 10 Gb/s, and what was predicted (root)."
    ),
}
"""By the word after `baton bench`. A benchmark is one line here, `python -m MODULE` with its own --help."""

CONTEXT_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Lets every option through: it is the module's."""

app = typer.Typer(no_args_is_help=True, help="Measure a server from outside; bench/METHODOLOGY.md defines the numbers.")


def run_benchmark(name: str, arguments: list[str]) -> None:
    """Run a benchmark to its end, with a status of its own; raise ConfigurationError if a package is not installed."""
    benchmark, home = BENCHMARKS[name], find_bench_home()
    sys.path[:0] = map(str, (home, home / benchmark.folder))
    # Some read sys.argv, all show its first word in their help.
    sys.argv = [f"baton bench {name}", *arguments]
    try:
        runpy.run_module(benchmark.module, run_name="__main__")
    except ImportError as error:
        raise ConfigurationError(f"bench {name} cannot run here: {error}; {install_line(*benchmark.extras)}") from error


def find_bench_home() -> Path:
    """Return the folder that holds the package `bench`; raise ConfigurationError if there is none."""
    package = Path(baton.__file__).resolve().parent
    homes = (package.parent / "baton_bench", package.parent.parent)
    for home in homes:
        if (home / "bench" / "METHODOLOGY.md").is_file():
            return home
    raise ConfigurationError("this installation has no bench/; expected it in " + " or ".join(map(str, homes)))


def _add(name: str, benchmark: Benchmark) -> None:
    @app.command(name, help=benchmark.summary, context_settings=CONTEXT_SETTINGS)
    def command(context: typer.Context) -> None:
        run_benchmark(name, context.args)


for _name, _benchmark in BENCHMARKS.items():
    _add(_name, _benchmark)
