"""An engine that runs ahead of its device says what one says that waits for it, and what transformers says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from baton.engine.engine import Engine
from baton.engine.kv_cache.pool_size import PoolBounds
from baton.engine.request import SamplingParams
from baton.engine.runners.torch.loader import load_torch_runner
from checkpoints import VOCABULARY_SIZE, CheckpointName, checkpoint, reference_generate
from exactness.handover import Generation, generate, greedy, start_engine

NUM_TOKENS = 14
FAMILY: CheckpointName = "llama"


def engine_of(*, uses_decode_buffers: bool) -> Engine:
    """Return a running engine; with static buffers, the tokens of a pass reach the next one without the host."""
    runner = load_torch_runner(
        checkpoint(FAMILY),
        model_id=FAMILY,
        num_blocks=48,
        model_code="baton",
        bounds=PoolBounds(max_batch_size=32),
        uses_decode_buffers=uses_decode_buffers,
    )
    assert runner.runs_ahead is uses_decode_buffers
    return start_engine(runner, max_step_tokens=24)


@pytest.fixture
def engines() -> Iterator[tuple[Engine, Engine]]:
    """Return one that runs ahead, and one that waits."""
    both = engine_of(uses_decode_buffers=True), engine_of(uses_decode_buffers=False)
    yield both
    for engine in both:
        engine.close()


def prompts_of(count: int) -> list[list[int]]:
    """Return prompts of a few lengths; two of them are equal, two begin alike."""
    draw = Random(11)
    prompts = [draw.choices(range(3, VOCABULARY_SIZE), k=draw.choice([5, 16, 40])) for _ in range(count - 2)]
    return [*prompts, prompts[0], prompts[1] * 2]


def test_greedy_output_equals_transformers_with_joins_and_stop_tokens(engines: tuple[Engine, Engine]) -> None:
    """More than the memory holds at once; every third one stops early, while the device is at its next position."""
    ahead, _ = engines
    started: list[tuple[list[int], Generation]] = []
    for index, prompt in enumerate(prompts_of(10)):
        expected = reference_generate(checkpoint(FAMILY), prompt, NUM_TOKENS)
        params = greedy(NUM_TOKENS)
        if index % 3 == 0:
            stop = expected[5]
            params = replace(params, stop_token_ids=frozenset({stop}))
            expected = expected[: expected.index(stop) + 1]
        started.append((expected, generate(ahead, f"r{index}", prompt, params)))
        if index % 4 == 3:
            started[-1][1].first_token()  # the others join in the middle
            started[-1] = (expected[1:], started[-1][1])

    for index, (expected, generation) in enumerate(started):
        assert generation.tokens(first_index=1 if index % 4 == 3 else 0) == expected


@pytest.mark.parametrize("fields", [{}, {"top_k": 5}, {"presence_penalty": 0.5}, {"min_tokens": 9}])
def test_seeded_output_equals_that_of_an_engine_that_waits(
    engines: tuple[Engine, Engine], fields: dict[str, float]
) -> None:
    """Plain ones are drawn on the device; others make the batch wait for the host, and change nothing."""
    answers = []
    for engine in engines:
        generations = []
        for index, prompt in enumerate(prompts_of(6)):
            params = SamplingParams(temperature=0.9, seed=index, ignore_eos=True, max_tokens=NUM_TOKENS)
            if index % 2:
                params = replace(params, **fields)  # type: ignore[arg-type]
            generations.append(generate(engine, f"r{index}", prompt, params))
        answers.append([generation.tokens() for generation in generations])

    assert answers[0] == answers[1]
