"""The command line of `baton bench prefix`."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.prefix.pass_timing import TIMINGS
from bench.prefix.sweep import Plan

DATASETS = ("synthetic", "sharegpt", "mooncake")


def parser() -> argparse.ArgumentParser:
    """Return the parser; every option has a help text with its unit."""
    parser = argparse.ArgumentParser(
        prog="baton bench prefix",
        description="What a prefix cache and a scheduler are worth, in virtual time: the mock-engine note's experiments"
        " (Llama-65B on an A100), then the same load on Baton's own scheduler and block cache.",
    )
    load = parser.add_argument_group("what is asked")
    load.add_argument("--dataset", choices=DATASETS, default="synthetic", help="(%(default)s)")
    load.add_argument("--path", type=Path, help="file of sharegpt and mooncake")
    load.add_argument("--train", type=_count, default=5000,
                      help="conversations that the static trie is built from (%(default)s)")  # fmt: skip
    load.add_argument("--count", type=_count, default=300, help="conversations that are served (%(default)s)")
    load.add_argument("--seed", type=int, default=1, help="of conversations and arrivals (%(default)s)")
    load.add_argument("--length-factor", type=float, default=0.1, help="mooncake: factor on all lengths (%(default)s)")
    load.add_argument("--load", type=float, default=0.7,
                      help="requests per second / those that the note's engine serves (%(default)s)")  # fmt: skip
    swept = parser.add_argument_group("what is swept")
    swept.add_argument("--cache-sizes", type=_sizes, default=[0, 300, 1000, 3000, 10_000, 30_000, 100_000],
                       help="CACHE_SIZE, tokens, separated by commas (0,300,1000,...,100000)")  # fmt: skip
    swept.add_argument("--batch-sizes", type=_sizes, default=[1, 2, 4, 8, 16, 32], help="(1,2,4,8,16,32)")
    swept.add_argument("--cache-size", type=int, default=10_000, help="while batch sizes are swept (%(default)s)")
    swept.add_argument("--batch-size", type=_count, default=8, help="while cache sizes are swept (%(default)s)")
    swept.add_argument("--timings", type=_timings, default=[timing.name for timing in TIMINGS],
                       help="models of what a pass takes: note, roofline (both)")  # fmt: skip
    results = parser.add_argument_group("results")
    results.add_argument("--out", type=Path, help="JSON to write")
    results.add_argument("--plot", type=Path, help="PNG to write; the timing's name is put before its suffix")
    results.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the points that the options describe.

    Raises:
        ValueError: If a number is out of range.
    """
    if min(options.batch_sizes) < 1:
        raise ValueError("--batch-sizes must be 1 or more")
    if options.load <= 0 or options.length_factor <= 0:
        raise ValueError("--load and --length-factor must be above 0")
    if options.cache_size < 0:
        raise ValueError("--cache-size must be 0 or more")
    return Plan(options.cache_sizes, options.batch_sizes, options.cache_size, options.batch_size, options.load)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _sizes(text: str) -> list[int]:
    sizes = sorted({int(part) for part in text.split(",")})
    if sizes[0] < 0:
        raise argparse.ArgumentTypeError(f"{sizes[0]} is below 0")
    return sizes


def _timings(text: str) -> list[str]:
    names, known = text.split(","), [timing.name for timing in TIMINGS]
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: expected {', '.join(known)}")
    return names
