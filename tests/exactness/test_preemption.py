"""Requests whose blocks are taken from them and come back, from host memory or by computation: still their tokens."""

from __future__ import annotations

import random

import pytest

from checkpoints import checkpoint, reference_generate
from exactness.handover import generate, greedy, held, start_engine
from exactness.loading import Framework, load_runner

NUM_NEW_TOKENS = 40


@pytest.mark.parametrize("framework", ["torch", "mlx"])
@pytest.mark.parametrize("host_bytes", [0, 2**24], ids=["computed again", "moved"])
def test_preempted_requests_give_the_tokens_of_each_alone(framework: Framework, host_bytes: int) -> None:
    """In float32, with a pool that holds less than half of them at once."""
    random_ids = random.Random(3)
    prompts = [[random_ids.randrange(3, 512) for _ in range(length)] for length in (50, 61, 33, 48, 90, 16)]
    runner = load_runner(framework, checkpoint("llama"), num_blocks=14)
    engine = start_engine(runner, max_step_tokens=40, host_bytes=host_bytes)

    with held(engine):
        generations = [
            generate(engine, f"r{index}", prompt, greedy(NUM_NEW_TOKENS)) for index, prompt in enumerate(prompts)
        ]
    outputs = [generation.tokens() for generation in generations]
    num_moved = engine.scheduler.offload.store.num_blocks
    engine.close()

    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == reference_generate(checkpoint("llama"), prompt, NUM_NEW_TOKENS, guess=output)
    assert sum(generation.ended.num_preemptions for generation in generations) > 0
    assert (num_moved > 0) == (host_bytes > 0)
