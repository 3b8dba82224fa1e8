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
from gpu.device import DEVICE, IS_CUDA, SEED, device_runner, prompt_of

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


@pytest.mark.parametrize("sizes", [(300, 512), (300, 4000), (40, 151_936)] if IS_CUDA else [(60, 2500)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.filterwarnings(
    "ignore:overflow encountered", "ignore:invalid value", "ignore:All-NaN"
)  # of numpy, where it interprets
def test_the_device_draws_as_the_host_does(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    """Of any temperature, also greedy rows, rows that are not finite, tokens without a chance, and the last number."""
    if dtype is torch.bfloat16 and not IS_CUDA:
        pytest.skip("numpy, which interprets, knows no bfloat16")
    generator = np.random.default_rng(SEED)
    wide = generator.normal(scale=4, size=sizes).astype(np.float32)
    wide[5, 7], wide[6, 7], wide[8] = np.nan, np.inf, -np.inf
    wide[9, 3:] = -np.inf
    narrow = torch.from_numpy(wide).to(dtype)
    uniforms = generator.random((1, sizes[0]))
    uniforms[0, 10:20], uniforms[0, 20:30] = 0.0, np.nextafter(1.0, 0.0)
    draws = Draws(generator.choice([0.0, 0.01, 0.7, 1.0, 5.0], sizes[0]), uniforms)
    ops = choose_ops(DEVICE, dtype)
    numbers = (torch.from_numpy(each).to(DEVICE) for each in (draws.temperatures, draws.uniforms[0]))

    tokens = ops.drawn(narrow.to(DEVICE), *numbers).tolist()

    assert tokens == draw_tokens(narrow.float().numpy(), draws)
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
