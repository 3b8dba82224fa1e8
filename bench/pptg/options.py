"""The command line of `baton bench pptg`."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from bench.options import at_least, list_of
from bench.pptg.report import Setting


def parser() -> argparse.ArgumentParser:
    """Return the parser; every option has a help text with its unit."""
    parser = argparse.ArgumentParser(
        prog="baton bench pptg", description="Measures prompt and generation rates by exo-bench's method."
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server (%(default)s)")
    parser.add_argument("--model", help="model to ask; default: the first that the server has")
    parser.add_argument("--endpoint", choices=("auto", "bench", "chat"), default="auto",
                        help="/bench/chat/completions, /v1/chat/completions, or the first where it exists")  # fmt: skip
    parser.add_argument("--pp", type=list_of(at_least(1)), required=True, help="prompt tokens, separated by commas")
    parser.add_argument("--tg", type=list_of(at_least(1)), required=True, help="output tokens, separated by commas")
    parser.add_argument(
        "--concurrency", type=list_of(at_least(1)), default=[1], help="requests at once, separated by commas (1)"
    )
    parser.add_argument("--repeat", type=int, default=1, help="batches per setting (%(default)s)")
    parser.add_argument("--warmup", type=int, default=0, help="batches of the first setting before (%(default)s)")
    parser.add_argument("--use-prefix-cache", action="store_true", help="the same prompt every time, caches on")
    parser.add_argument("--no-ignore-eos", action="store_true", help="do not send ignore_eos to a chat endpoint")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="longest time of one request, seconds (%(default)s)"
    )
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key")
    parser.add_argument("--out", type=Path, help="JSON to write")
    return parser


def settings_of(options: argparse.Namespace) -> list[Setting]:
    """Return what to measure: each prompt's length with each output's, at every concurrency."""
    return [Setting(*each) for each in itertools.product(options.pp, options.tg, options.concurrency)]
