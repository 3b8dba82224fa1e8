"""Measures what wire formats lose: agreement and logit error of models, and the demo model's needles by context length.

`python -m bench.microbench.wire_quality [--model DIR]... [--engine torch]` prints one JSON document. Every answer token
is predicted from KV that went through the format, the first too, which a prefill node would sample from its own.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from baton.demo import checkpoint_dir
from baton.demo.evaluate import CONTEXT_LENGTHS, needle_row
from baton.engine.runners.base import Array, Runner
from baton.kv.kv_format import KvDtype, KvLayout, WireFormat, token_bytes, wire_dtypes
from baton.node.loading import load_runner
from baton.node.profiling.wire_formats import WireTrial, log_probabilities, mean_divergence
from baton.node.settings import EngineName, NodeSettings

CONTEXT_TOKENS, CONTINUATION_TOKENS = 160, 96


@dataclass(frozen=True, slots=True)
class Quality:
    """What one format loses on one model, against KV that travelled as it was."""

    wire: str
    """Names of the formats of K and V."""
    bytes_share: float
    """Bytes on the wire, as a share of the cache's."""
    top1_agreement: float
    """Share of positions with the same most probable token."""
    logit_error: float
    """Root of the mean squared difference of logits, as a share of their standard deviation."""
    divergence_nats: float
    """Mean Kullback-Leibler divergence of the next token's distribution."""


@dataclass(frozen=True, slots=True)
class Needles:
    """Needles found at one context length through one format."""

    wire: str
    context_tokens: int
    num_right: int
    num_asked: int


def wire_formats(layout: KvLayout) -> list[WireFormat]:
    """Return what is compared: the cache's own format, each other for both, and K in 16 bits with V in 8."""
    own, *narrower = wire_dtypes(layout)
    sixteen = own if own.num_bytes == 2 else KvDtype.BFLOAT16
    both = [WireFormat(dtype, dtype) for dtype in (own, *narrower)]
    return [*both, WireFormat(sixteen, KvDtype.INT8)]


def name_of(wire: WireFormat) -> str:
    """Return a format's name as `kv_wire_dtype` takes it."""
    return wire.keys.value if wire.keys is wire.values else f"{wire.keys.value}/{wire.values.value}"


def measure_quality(prefill: Runner, decode: Runner, *, seed: int = 5) -> list[Quality]:
    """Return what every format loses where one runner hands over to another, on random tokens."""
    layout, draw = prefill.info.layout, random.Random(seed)
    token_ids = [draw.randrange(3, prefill.info.vocabulary_size) for _ in range(CONTEXT_TOKENS + CONTINUATION_TOKENS)]
    trial = WireTrial(prefill, decode, token_ids, CONTEXT_TOKENS)
    own, *others = wire_formats(layout)
    expected = trial.logits(own).copy()
    return [_compare(layout, wire, expected, trial.logits(wire)) for wire in others]


def measure_needles(runner: Runner, *, lengths: tuple[int, ...], num_needles: int, seed: int = 1) -> list[Needles]:
    """Return the needles that the demo model finds by context length, through every format."""
    draw, results = random.Random(seed), []
    for length in lengths:
        found = dict.fromkeys(wire_formats(runner.info.layout), 0)
        for _ in range(num_needles):
            row = needle_row(draw, length)
            first_answer = row.is_target.index(True)
            trial = WireTrial(runner, runner, row.tokens[:-1], first_answer - 1)
            answer = np.array(row.tokens[first_answer:])
            for wire in found:
                found[wire] += int((trial.logits(wire).argmax(axis=1) == answer).all())
        results += [Needles(name_of(wire), length, count, num_needles) for wire, count in found.items()]
    return results


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description="Measure what wire formats of KV lose.")
    parser.add_argument("--model", type=Path, action="append", default=[], help="model folder to compare logits of")
    parser.add_argument("--engine", choices=("torch", "mlx"), default="torch", help="engine of both sides")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights and cache")
    parser.add_argument("--num-needles", type=int, default=40, help="needles per context length; 0: none")
    parser.add_argument("--max-context", type=int, default=CONTEXT_LENGTHS[-1], help="longest context of needles")
    options = parser.parse_args()
    document: dict[str, object] = {"engine": options.engine, "dtype": options.dtype, "qualities": {}, "needles": []}
    for directory in [*options.model, checkpoint_dir()]:
        runner = _load(directory, options.engine, options.dtype)
        qualities = [asdict(quality) for quality in measure_quality(runner, runner)]
        document["qualities"] = {**dict(document["qualities"]), directory.resolve().name: qualities}  # type: ignore[call-overload]
        if directory == checkpoint_dir() and options.num_needles:
            lengths = tuple(length for length in CONTEXT_LENGTHS if length <= options.max_context)
            needles = measure_needles(runner, lengths=lengths, num_needles=options.num_needles)
            document["needles"] = [asdict(one) for one in needles]
        runner.close()
    print(json.dumps(document))


def _compare(layout: KvLayout, wire: WireFormat, expected: Array, actual: Array) -> Quality:
    own = WireFormat(layout.dtype, layout.dtype)
    return Quality(
        wire=name_of(wire),
        bytes_share=round(sum(token_bytes(layout, wire)) / sum(token_bytes(layout, own)), 4),
        top1_agreement=float((expected.argmax(-1) == actual.argmax(-1)).mean()),
        logit_error=float(np.sqrt(((expected - actual) ** 2).mean()) / expected.std()),
        divergence_nats=mean_divergence(log_probabilities(expected), log_probabilities(actual)),
    )


def _load(directory: Path, engine: EngineName, dtype: str) -> Runner:
    num_blocks = CONTEXT_LENGTHS[-1] // 16 + 8
    return load_runner(NodeSettings(model_dir=directory, engine=engine, dtype=dtype, num_blocks=num_blocks))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
