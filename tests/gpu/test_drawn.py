"""Tokens that are drawn: the same seed gives the same on the device, captured or not, as on the CPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from baton.engine.request import SamplingParams
from baton.engine.runners.base import Runner
from baton.engine.runners.drawing import NOT_FINITE, Draws, draw_tokens
from baton.engine.runners.torch.ops.choose import choose_ops
from checkpoints import CheckpointName, checkpoint
from exactness.handover import generate, greedy, start_engine
from exactness.loading import load_runner
from gpu.device import DEVICE, SEED, device_runner, prompt_of

PARAMS = [
    SamplingParams(temperature=0.8, seed=5, ignore_eos=True, max_tokens=20),
    SamplingParams(temperature=1.3, seed=6, ignore_eos=True, max_tokens=40),
    SamplingParams(temperature=0.8, top_k=20, seed=7, ignore_eos=True, max_tokens=12),
    greedy(35),
    SamplingParams(temperature=0.0, num_top_logprobs=2, ignore_eos=True, max_tokens=15),
    SamplingParams(temperature=0.7, seed=8, ignore_eos=True, max_tokens=60),
    SamplingParams(temperature=1.2, min_p=0.05, repetition_penalty=1.2, seed=2**62, ignore_eos=True, max_tokens=30),
    SamplingParams(temperature=1.0, seed=-9, ignore_eos=True, max_tokens=50),
]
"""Temperature alone is drawn on the device, the rest from logits on the host."""


def outputs_of(runner: Runner, indices: list[int]) -> list[list[int]]:
    """Return what is drawn after prompts of some parameters, all at once."""
    engine = start_engine(runner, max_step_tokens=64)
    try:
        running = [
            generate(engine, f"{index}-{turn}", prompt_of(20 + 13 * index), PARAMS[index])
            for turn, index in enumerate(indices)
        ]
        return [generation.tokens() for generation in running]
    finally:
        engine.close()


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gpt_oss"])
def test_the_same_seed_gives_the_same_tokens(name: CheckpointName) -> None:
    """All ways of choosing side by side; drawn ones alone in a batch, which are captured; and as the CPU draws them."""
    every, plain = list(range(len(PARAMS))), [0, 1, 5, 7]
    expected = outputs_of(load_runner("torch", checkpoint(name)), every)
    captures = (True, False) if name in ("llama", "qwen3") else (None,)
    for has_graphs in captures:
        outputs = outputs_of(device_runner(checkpoint(name), has_graphs=has_graphs), every)
        drawn = outputs_of(device_runner(checkpoint(name), has_graphs=has_graphs), plain)

        assert outputs == expected, f"graphs: {has_graphs}"
        assert drawn == [expected[index] for index in plain], f"graphs: {has_graphs}"


def test_the_device_draws_as_the_host_does() -> None:
    """Over many rows of a large vocabulary, of any temperature, also greedy ones and rows that are not finite."""
    generator = np.random.default_rng(SEED)
    rows = generator.normal(scale=4, size=(300, 4000)).astype(np.float32)
    rows[5, 7], rows[6, 7], rows[8] = np.nan, np.inf, -np.inf
    rows[9, 3:] = -np.inf
    draws = Draws(generator.choice([0.0, 0.01, 0.7, 1.0, 5.0], 300), generator.random((1, 300)))
    ops = choose_ops(DEVICE, torch.float32)
    values = (torch.from_numpy(each).to(DEVICE) for each in (rows, draws.temperatures, draws.uniforms[0]))

    tokens = ops.drawn(*values).tolist()

    assert tokens == draw_tokens(rows, draws)
    assert [index for index, token in enumerate(tokens) if token == NOT_FINITE] == [5, 6, 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_smallest_of_equals_is_the_most_probable(dtype: torch.dtype) -> None:
    """In every number format, wherever the equals lie among 150,000."""
    draw = random.Random(SEED)
    logits = torch.zeros(64, 150_000, dtype=dtype)
    places = [sorted(draw.sample(range(150_000), 5)) for _ in range(64)]
    for row, each in enumerate(places):
        logits[row, each] = 3.0

    assert choose_ops(DEVICE, dtype).most_probable(logits.to(DEVICE)).tolist() == [each[0] for each in places]
