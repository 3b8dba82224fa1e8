"""Prints a line of JSON per round: what an engine's passes cost the host, and what rate comes of it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from baton.engine.runners.base import Runner
from engine.microbench.host_time import Load, measure


def main() -> int:
    """Measure; the first round warms up and is not printed."""
    options = _parser().parse_args()
    load = Load(options.batch_size, options.passes, options.temperature)
    num_blocks = load.batch_size * ((load.num_passes + 40) // 16 + 1)
    runner = _runner(options, num_blocks)
    for number in range(options.rounds + 1):
        measured = measure(runner, load)
        if number:
            print(json.dumps(measured._asdict()), flush=True)
    runner.close()
    return 0


def _runner(options: argparse.Namespace, num_blocks: int) -> Runner:
    if options.engine == "torch":
        from baton.engine.runners.torch import load_torch_runner

        return load_torch_runner(options.model, model_id="model", num_blocks=num_blocks)
    from baton.engine.runners.mock import load_mock_runner

    return load_mock_runner(
        options.model, model_id="model", num_blocks=num_blocks, fixed_step_seconds=options.step_seconds
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.microbench", description=__doc__)
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
