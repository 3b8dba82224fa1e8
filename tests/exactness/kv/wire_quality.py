"""Measures what wire formats lose: agreement and logit error of models, and the demo model's needles by context length.

Without a network: KV is packed and unpacked as nodes do. Every answer token is predicted from KV that went through the
format, the first too, which a prefill node would sample from its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from baton.engine.runners.base import Array, Runner
from baton.kv.kv_format import KvDtype, KvLayout, WireFormat, token_bytes, wire_dtypes
from baton.node.profiling.wire_formats import WireTrial, log_probabilities, mean_divergence
from demo.evaluate import needle_row

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


def _compare(layout: KvLayout, wire: WireFormat, expected: Array, actual: Array) -> Quality:
    own = WireFormat(layout.dtype, layout.dtype)
    return Quality(
        wire=name_of(wire),
        bytes_share=round(sum(token_bytes(layout, wire)) / sum(token_bytes(layout, own)), 4),
        top1_agreement=float((expected.argmax(-1) == actual.argmax(-1)).mean()),
        logit_error=float(np.sqrt(((expected - actual) ** 2).mean()) / expected.std()),
        divergence_nats=mean_divergence(log_probabilities(expected), log_probabilities(actual)),
    )
