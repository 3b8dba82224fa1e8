"""Times passes of a runner, beside what the device can do at best: multiply, read its memory, send to the host.

Decode steps that follow each other on the device, prompts, and their hand-over.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from baton.engine.runners.base import UNKNOWN_TOKEN, LayerKv, Span
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner

_REPEATS = 5


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of some work, all that the device does for it included."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the least time of several runs, after one that does not count."""
    work()
    return min(seconds_of(work, device) for _ in range(_REPEATS))


def matmul_flops(size: int, dtype: torch.dtype, device: torch.device) -> float:
    """Return the FLOP/s of a square product."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2.0 * size**3 / best_seconds(lambda: left @ right, device)


def memory_bytes_per_second(num_bytes: int, device: torch.device) -> float:
    """Return the bytes read and written per second by a copy within the device's memory."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * num_bytes / best_seconds(lambda: target.copy_(source), device)


def host_bytes_per_second(num_bytes: int, device: torch.device) -> float:
    """Return the bytes per second from the device into pinned memory of the host."""
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return num_bytes / best_seconds(lambda: target.copy_(source, non_blocking=True), device)


class StreamingTimes(NamedTuple):
    """A prompt computed with and without its KV being handed over, in turn."""

    plain_seconds: list[float]
    handed_over_seconds: list[float]
    num_bytes: int


def decode_seconds(
    runner: CudaGraphRunner, *, batch_size: int, context: int, num_launches: int, num_steps: int
) -> float:
    """Return a decode step's seconds, the host one launch ahead, reading every token; blocks hold zeros."""
    num_warm = 3
    num_positions = context + (num_launches + num_warm) * num_steps
    tables = _tables(runner, batch_size, num_positions)
    launched = runner.launch([Span([7], context - 1, table, needs_logits=True) for table in tables])
    position = context

    def run(count: int) -> None:
        nonlocal launched, position
        for _ in range(count):
            spans = [
                Span((UNKNOWN_TOKEN,), position, table, needs_logits=True, follows_row=row)
                for row, table in enumerate(tables)
            ]
            following = runner.launch(spans, after=launched, num_steps=num_steps)
            launched.tokens()
            launched, position = following, position + num_steps

    run(num_warm)
    wait_for(runner.device)
    return seconds_of(lambda: run(num_launches), runner.device) / (num_launches * num_steps)


def prefill_seconds(runner: CudaGraphRunner, *, num_tokens: int, repeat: int) -> list[float]:
    """Return the seconds of a prompt until its first token is on the host, after a run that does not count."""
    return [_prefill(runner, num_tokens, seed, None) for seed in range(repeat + 1)][1:]


def streaming_seconds(runner: CudaGraphRunner, *, num_tokens: int, repeat: int) -> StreamingTimes:
    """Return the seconds of a prompt with and without its KV being handed over, in turn."""
    num_bytes = 0

    def take(layer: int, kv: LayerKv) -> None:  # noqa: ARG001 - every layer alike
        nonlocal num_bytes
        num_bytes += len(kv.keys) + len(kv.values)

    pairs = [
        (_prefill(runner, num_tokens, seed, None), _prefill(runner, num_tokens, seed, take))
        for seed in range(repeat + 1)
    ][1:]
    return StreamingTimes([plain for plain, _ in pairs], [sent for _, sent in pairs], num_bytes // (repeat + 1))


def ratio_of(times: StreamingTimes) -> float:
    """Return how many times as long a prompt takes that is handed over: the median of the pairs' ratios."""
    pairs = zip(times.handed_over_seconds, times.plain_seconds, strict=True)
    return statistics.median(sent / plain for sent, plain in pairs)


def _prefill(runner: CudaGraphRunner, num_tokens: int, seed: int, sink: object) -> float:
    prompt = random.Random(seed).choices(range(10, runner.info.vocabulary_size), k=num_tokens)
    span = Span(prompt, 0, _tables(runner, 1, num_tokens)[0], needs_logits=True, layer_sink=sink)  # type: ignore[arg-type]
    return seconds_of(lambda: runner.launch([span]).tokens(), runner.device)


def _tables(runner: CudaGraphRunner, batch_size: int, num_positions: int) -> Sequence[list[int]]:
    """Return blocks for some sequences, strewn over the pool."""
    num_needed = -(-num_positions // runner.block_tokens)
    blocks = list(range(runner.num_blocks))
    random.Random(1).shuffle(blocks)
    assert batch_size * num_needed <= len(blocks), f"{runner.num_blocks} blocks are too few"
    return [blocks[index * num_needed : (index + 1) * num_needed] for index in range(batch_size)]
