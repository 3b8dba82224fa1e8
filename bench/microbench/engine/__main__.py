"""Prints a line of JSON per measurement: every option on, each off by itself, all off, in turn, several rounds."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from baton.engine.limits import EngineOptions
from baton.engine.runners.base import Runner
from bench.microbench.engine.host_time import Load, measure

VARIANTS: Mapping[str, EngineOptions] = {
    "all": EngineOptions(),
    "no run ahead": EngineOptions(runs_ahead=False),
    "one step a launch": EngineOptions(max_launch_steps=1),
    "one step, no run ahead": EngineOptions(max_launch_steps=1, runs_ahead=False),
    "one step, no reuse": EngineOptions(max_launch_steps=1, reuses_steps=False),
    "no reuse": EngineOptions(reuses_steps=False),
    "row by row": EngineOptions(chooses_by_batch=False),
    "event per token": EngineOptions(delivers_columns=False),
    "none": EngineOptions(
        runs_ahead=False, max_launch_steps=1, reuses_steps=False, chooses_by_batch=False, delivers_columns=False
    ),
}


def main() -> int:
    """Measure; the first round warms up and is not printed."""
    options = _parser().parse_args()
    load = Load(options.batch_size, options.passes, options.temperature)
    num_blocks = load.batch_size * ((load.num_passes + 40) // 16 + 1)
    runner = _runner(options, num_blocks)
    for number in range(options.rounds + 1):
        names = list(VARIANTS)
        first = number % len(names)  # no variant is always the first after a pause
        for name in names[first:] + names[:first]:
            measured = measure(runner, VARIANTS[name], load)
            if number:
                sys.stdout.write(json.dumps({"variant": name, **measured._asdict()}) + "\n")
                sys.stdout.flush()
    runner.close()
    return 0


def _runner(options: argparse.Namespace, num_blocks: int) -> Runner:
    if options.engine == "torch":
        from baton.engine.runners.torch import load_torch_runner

        return load_torch_runner(options.model, model_id="gauge", num_blocks=num_blocks)
    from baton.engine.runners.mock import load_mock_runner

    return load_mock_runner(
        options.model, model_id="gauge", num_blocks=num_blocks, fixed_step_seconds=options.step_seconds
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.microbench.engine", description=__doc__)
    parser.add_argument("model", type=Path, help="model folder")
    parser.add_argument("--engine", choices=("mock", "torch"), default="mock")
    parser.add_argument("--step-seconds", type=float, default=0.002, help="what a pass takes on the mock device")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--passes", type=int, default=200, help="tokens of each request")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=5)
    return parser


if __name__ == "__main__":
    sys.exit(main())
