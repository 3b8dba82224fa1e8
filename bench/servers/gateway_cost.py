"""What a streamed token costs outside the engine: CPU time of gateway, decode node and router, and time added.

baton bench gateway-cost [--quick] [--out bench/results/gateway_cost]

Runs Baton with a mock engine, and a direct gRPC connection to its decode node, turn by turn under the same load; writes
OUT.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.processes import answers_of
from bench.results_file import describe_machine, write_results
from bench.servers.cost_sample import Sample, summary_lines
from bench.servers.cost_stack import Stack, baton_stack
from bench.servers.stream_load import Latencies, Load, compile_load, run_load, write_body
from bench.servers.tiny_model import write_model

FORMAT = "baton-bench-gateway-cost/1"
NUM_TOKENS = 128
NUM_PROMPT_WORDS = 48
STEP_SECONDS = (0.02, 0.0)
"""Paced, and as fast as it goes."""
_REQUESTS = {1: 10, 32: 4, 256: 3}
"""Requests per stream, by the number of streams: enough CPU time for clock ticks of 10 ms."""


class Measurement:
    """Runs every load against every system, in turn, `num_repeats` times."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._vocabulary_size = write_model(folder)
        self._program = compile_load(folder)
        self._body = write_body(folder, num_prompt_words=NUM_PROMPT_WORDS, num_tokens=NUM_TOKENS)

    def run(self) -> Iterator[Sample]:
        """Yield each sample as it is taken."""
        for step_seconds in STEP_SECONDS:
            with baton_stack(self._folder, step_seconds) as baton:
                run_load(self._program, baton.http_port, self._body, Load(8, 1, NUM_TOKENS, 0.0))
                for repeat in range(self._options.repeats):
                    for load in self._loads(step_seconds):
                        yield from self._turn(baton, load, step_seconds, repeat)

    def _loads(self, step_seconds: float) -> Sequence[Load]:
        one_answer_seconds = step_seconds * NUM_TOKENS
        streams = [int(number) for number in self._options.streams.split(",")]
        return [
            Load(number, 1 if self._options.quick else _REQUESTS.get(number, 3), NUM_TOKENS, one_answer_seconds)
            for number in streams
        ]

    def _turn(self, baton: Stack, load: Load, step_seconds: float, repeat: int) -> Iterator[Sample]:
        for system in ("baton", "direct"):
            before = baton.cpu_seconds()
            if system == "baton":
                latencies = run_load(self._program, baton.http_port, self._body, load)
            else:
                latencies = self._direct(baton, load)
            yield Sample(system, step_seconds, load, repeat, latencies, _difference(baton.cpu_seconds(), before))

    def _direct(self, baton: Stack, load: Load) -> Latencies:
        numbers = (
            baton.decode_port, load.num_streams, load.num_requests, load.num_tokens, NUM_PROMPT_WORDS,
            self._vocabulary_size, load.ramp_seconds,
        )  # fmt: skip
        command = [sys.executable, "-c", "from bench.servers.direct_load import run; run()", *map(str, numbers)]
        (answer,) = answers_of(command)
        return Latencies.of(answer)


def _difference(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {name: seconds - before[name] for name, seconds in after.items()}


def main() -> None:
    """Measure, print and write."""
    options = _parse()
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="baton-gateway-cost-") as folder:
        for sample in Measurement(options, Path(folder)).run():
            samples.append(sample)
            print(summary_lines([sample])[-1], flush=True)
    print("\nmedians over repeats", *summary_lines(samples), sep="\n")
    settings = {name: value for name, value in vars(options).items() if name != "out"}
    result = {
        "format": FORMAT,
        "machine": describe_machine(),
        "settings": settings,
        "samples": [sample.to_json() for sample in samples],
    }
    out = Path(options.out)
    write_results(out.with_suffix(".json"), result)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="baton bench gateway-cost", description=__doc__)
    parser.add_argument("--streams", default="1,32,256", help="numbers of streams")
    parser.add_argument("--repeats", type=int, default=3, help="turns of every load")
    parser.add_argument("--quick", action="store_true", help="one request per stream")
    parser.add_argument("--out", default="bench/results/gateway_cost", help="path of the results, without ending")
    return parser.parse_args()


if __name__ == "__main__":
    main()
