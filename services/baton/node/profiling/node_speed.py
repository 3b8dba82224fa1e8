"""Measures how fast a runner is on its model, before it serves. Source of the fit: baton.capacity.cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from baton.capacity.cost import NodeProfile
from baton.capacity.profile_fit import DecodeSample, PrefillSample, fit_profile
from baton.engine.runners.base import Runner, Span
from baton.engine.runners.mock import MockRunner

PREFILL_LENGTHS = (16, 128, 384)
DECODE_SHAPES = ((1, 32), (1, 256), (4, 32), (4, 256))
"""(batch size, context) of the timed decode steps."""
NUM_REPEATS = 3
"""Runs of each; the fastest counts, for a busy machine only ever adds time."""
LONG_SECONDS = 0.25
"""A run of this length is the last of its kind: a node whose model is slow is to serve all the same."""


def measure_profile(runner: Runner, clock: Callable[[], float] = time.perf_counter) -> NodeProfile:
    """Time a few prefills and decode steps and fit rates to them; a mock node declares its rates instead.

    The blocks used are left as they are: nothing refers to them yet.
    """
    if isinstance(runner, MockRunner):
        return runner.hardware.profile()
    capacity = min(runner.num_blocks * runner.block_tokens, runner.info.max_context_tokens)
    prefills = [
        PrefillSample(num_tokens, _fastest(runner, [_span(runner, 0, 0, num_tokens)], clock))
        for num_tokens in _fitting(PREFILL_LENGTHS, capacity)
    ]
    decodes = [
        DecodeSample(batch_size, context, _fastest(runner, _decode_spans(runner, batch_size, context), clock))
        for batch_size, context in DECODE_SHAPES
        if batch_size * (context + 1 + runner.block_tokens) <= capacity
    ]
    if len(decodes) < 2:  # a pool of a few blocks: any two contexts that fit
        decodes = [
            DecodeSample(1, context, _fastest(runner, _decode_spans(runner, 1, context), clock))
            for context in _fitting((1, max(2, capacity // 2)), capacity)
        ]
    return fit_profile(runner.info.shape, prefills, decodes)


def _fitting(lengths: tuple[int, ...], capacity: int) -> tuple[int, ...]:
    fitting = tuple(length for length in lengths if length < capacity)
    return fitting if len(fitting) > 1 else (1, max(2, capacity - 1))


def _fastest(runner: Runner, spans: list[Span], clock: Callable[[], float]) -> float:
    runner.forward(spans).argmax()  # warms up caches and kernels
    fastest = math.inf
    for _ in range(NUM_REPEATS):
        started = clock()
        runner.forward(spans).argmax()
        seconds = clock() - started
        fastest = min(fastest, seconds)
        if seconds >= LONG_SECONDS:
            break
    return max(fastest, 1e-9)


def _span(runner: Runner, first_block: int, start: int, num_tokens: int) -> Span:
    num_blocks = -(-(start + num_tokens) // runner.block_tokens)
    table = [(first_block + index) % runner.num_blocks for index in range(num_blocks)]
    token_ids = [1 % runner.info.vocabulary_size] * num_tokens
    return Span(token_ids, start, table, needs_logits=True)


def _decode_spans(runner: Runner, batch_size: int, context: int) -> list[Span]:
    num_blocks = -(-(context + 1) // runner.block_tokens)
    return [_span(runner, index * num_blocks, context, 1) for index in range(batch_size)]
