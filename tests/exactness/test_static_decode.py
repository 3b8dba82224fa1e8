"""The CUDA engine's way of decoding, run on the CPU through the whole engine, is exact too."""

from __future__ import annotations

import random
from pathlib import Path

from baton.engine.engine import Engine
from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.request import SamplingParams
from baton.engine.runners.base import Runner
from baton.engine.runners.torch import load_torch_runner
from checkpoints import VOCABULARY_SIZE, checkpoint, reference_generate
from exactness.handover import generate, greedy, start_engine
from exactness.loading import BLOCK_TOKENS

DRAW = random.Random(21)
PROMPTS = [DRAW.choices(range(3, VOCABULARY_SIZE), k=size) for size in (90, 12, 33, 5, 61, 20)]


def static_runner(folder: Path, num_blocks: int) -> Runner:
    """Return a runner that is left before its passes are computed, and decodes four sequences at most in its rows."""
    return load_torch_runner(
        folder,
        model_id="tiny",
        num_blocks=num_blocks,
        block_tokens=BLOCK_TOKENS,
        num_threads=1,
        bounds=PoolBounds(max_batch_size=4),
        uses_decode_buffers=True,
    )


def outputs_of(engine: Engine, params: list[SamplingParams]) -> list[list[int]]:
    """Return what all prompts are continued by, asked for together."""
    pairs = zip(PROMPTS, params, strict=True)
    running = [generate(engine, f"r{index}", prompt, each) for index, (prompt, each) in enumerate(pairs)]
    return [generation.tokens() for generation in running]


def test_requests_that_come_and_go_give_what_transformers_does() -> None:
    """Outputs of unlike lengths, more sequences than rows, chunked prompts, and too few blocks for all at once."""
    folder = checkpoint("mistral")
    lengths = [30, 45, 8, 60, 17, 40]
    engine = start_engine(static_runner(folder, 18), max_step_tokens=48)
    try:
        outputs = outputs_of(engine, [greedy(length) for length in lengths])
    finally:
        engine.close()

    for prompt, length, output in zip(PROMPTS, lengths, outputs, strict=True):
        assert output == reference_generate(folder, prompt, length, guess=output)


def test_all_ways_of_choosing_are_those_of_other_runners() -> None:
    """Temperature alone is drawn on the device, the rest from logits on the host; the tokens are the same."""
    folder = checkpoint("llama3")
    params = [
        SamplingParams(temperature=0.8, seed=5, ignore_eos=True, max_tokens=20),
        SamplingParams(temperature=1.3, seed=6, ignore_eos=True, max_tokens=30),
        SamplingParams(temperature=0.8, top_k=20, seed=7, ignore_eos=True, max_tokens=12),
        greedy(25),
        SamplingParams(temperature=0.0, num_top_logprobs=2, ignore_eos=True, max_tokens=15),
        SamplingParams(temperature=0.7, seed=8, ignore_eos=True, max_tokens=40),
    ]
    expected, actual = [], []
    plain = load_torch_runner(folder, model_id="tiny", num_blocks=64, block_tokens=BLOCK_TOKENS, num_threads=1)
    for runner, outputs in ((plain, expected), (static_runner(folder, 64), actual)):
        engine = start_engine(runner)
        try:
            outputs += outputs_of(engine, params)
        finally:
            engine.close()

    assert actual == expected
