"""Captured steps: every padded batch, row by row, over launches of many steps, against packed passes and the CPU."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
import torch

from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.runners.base import Span
from baton.engine.runners.drawing import Draws, draw_tokens
from baton.engine.runners.torch import load_torch_runner
from baton.engine.runners.torch.cuda_graph.capture import padded_batch
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from checkpoints import CheckpointName, checkpoint
from gpu.device import DEVICE, IS_CUDA, SEED, device_runner

NUM_ROWS = 256 if IS_CUDA else 24
NUM_BLOCKS = 6 * NUM_ROWS


def static_runner(name: CheckpointName) -> CudaGraphRunner:
    """Return a runner that captures batches up to `NUM_ROWS`."""
    runner = device_runner(checkpoint(name), num_blocks=NUM_BLOCKS, max_batch_size=NUM_ROWS, has_graphs=True)
    assert isinstance(runner, CudaGraphRunner)
    return runner


def filled(runner: CudaGraphRunner, draw: random.Random) -> tuple[list[list[int]], list[int]]:
    """Compute prompts of all rows; return their blocks and lengths."""
    free = draw.sample(range(NUM_BLOCKS), NUM_BLOCKS)
    lengths = [draw.choice((1, 15, 16, draw.randint(1, 70))) for _ in range(NUM_ROWS)]
    tables = [[free.pop() for _ in range(6)] for _ in lengths]
    for first in range(0, NUM_ROWS, 16):
        spans = [
            Span(draw.choices(range(3, 512), k=lengths[row]), 0, tables[row], needs_logits=True)
            for row in range(first, min(first + 16, NUM_ROWS))
        ]
        runner.forward(spans).argmax()
    return tables, lengths


def steps_of(rows: list[int], tables: list[list[int]], lengths: list[int], token: int = 7) -> list[Span]:
    """Return a decode pass of some rows."""
    return [Span([token], lengths[row], tables[row], needs_logits=True) for row in rows]


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
def test_every_padded_batch_computes_what_a_packed_pass_does(name: CheckpointName) -> None:
    """Sizes in any order, each twice, with other work between them that takes the memory which is free."""
    draw = random.Random(SEED)
    runner = static_runner(name)
    tables, lengths = filled(runner, draw)
    sizes = sorted({padded_batch(size, NUM_ROWS) for size in range(1, NUM_ROWS + 1)})
    order = [*sizes, *(max(1, size - 1) for size in sizes), *draw.choices(range(1, NUM_ROWS + 1), k=10)]
    draw.shuffle(order)
    for size in order:
        rows = draw.sample(range(NUM_ROWS), size)
        token = draw.randrange(3, 512)
        expected = runner.forward(steps_of(rows, tables, lengths, token)).rows()
        gc.collect()
        taken = [torch.full((draw.randint(1, 4096),), -1, dtype=torch.int32, device=DEVICE) for _ in range(200)]
        launched = runner.launch(steps_of(rows, tables, lengths, token))

        np.testing.assert_allclose(launched.logits().rows(), expected, atol=2e-4)
        assert launched.tokens() == launched.logits().argmax()
        del taken
    runner.close()


@pytest.mark.parametrize("size", [1, 3, 17, NUM_ROWS])
def test_launches_of_many_steps(size: int) -> None:
    """Greedy and drawn rows side by side, fed on the device, give what passes one by one give on the CPU."""
    draw = random.Random(SEED)
    device = static_runner("llama")
    host = load_torch_runner(
        checkpoint("llama"),
        model_id="tiny",
        num_blocks=NUM_BLOCKS,
        block_tokens=16,
        bounds=PoolBounds(max_batch_size=NUM_ROWS),
        uses_decode_buffers=False,
    )
    for runner in (device, host):
        tables, lengths = filled(runner, random.Random(SEED))  # type: ignore[arg-type]
    rows = draw.sample(range(NUM_ROWS), size)
    generator = np.random.default_rng(SEED)
    temperatures = np.where(np.arange(size) % 2 == 0, 0.9, 0.0)
    spans = steps_of(rows, tables, lengths)
    expected: list[list[int]] = []
    draws = [Draws(temperatures, generator.random((8, size))) for _ in range(2)]
    for each in draws:
        for step in range(8):
            logits = host.forward(spans).rows()
            expected.append(draw_tokens(logits, each, step))
            spans = [
                span._replace(token_ids=[token], start=span.start + 1)
                for span, token in zip(spans, expected[-1], strict=True)
            ]
    first = device.launch(steps_of(rows, tables, lengths), draws=draws[0], num_steps=8)
    following = [
        span._replace(token_ids=(-1,), start=span.start + 8, follows_row=row)
        for row, span in enumerate(steps_of(rows, tables, lengths))
    ]
    second = device.launch(following, draws=draws[1], after=first, num_steps=8)
    outputs = [launched.tokens(step) for launched in (first, second) for step in range(8)]

    assert outputs == expected
    device.close()
    host.close()


def test_a_runner_that_is_closed_gives_back_its_memory() -> None:
    """Weights, blocks, graphs and their pools: ten times over, no more is taken at the end than after the first."""
    if not IS_CUDA:
        pytest.skip("a CPU's memory is not counted")
    taken = []
    for _ in range(6):
        runner = static_runner("llama")
        tables, lengths = filled(runner, random.Random(SEED))
        draws = Draws(np.full(3, 0.5), np.full((1, 3), 0.5))
        runner.launch(steps_of([0, 1, 2], tables, lengths), draws=draws).tokens()
        runner.close()
        del runner
        gc.collect()
        torch.cuda.empty_cache()
        taken.append((torch.cuda.memory_allocated(DEVICE), torch.cuda.memory_reserved(DEVICE)))

    assert max(allocated for allocated, _ in taken[1:]) <= taken[1][0] + 2**20, taken
    assert max(reserved for _, reserved in taken[1:]) <= taken[1][1] + 2**22, taken
