"""Requests that come together and have prompts in common: computed once, and still each one's own tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from baton.engine.engine import Engine
from baton.engine.request import SamplingParams
from checkpoints import CheckpointName, checkpoint, reference_generate
from exactness.handover import Generation, generate, greedy, held, start_engine
from exactness.loading import BLOCK_TOKENS, NAMES, SAMPLE, SERVED, Framework, load_runner
from order import RUNS_ALL

NUM_NEW_TOKENS = 24
NUM_COPIES = 3
SEEDS = (5, 10, 12, 13)
"""No random number of theirs comes as near to a family's next token as two orders of sums differ."""


MAX_STEP_TOKENS = {"at-once": 256, "in-chunks": 40}
"""Passes that hold a whole prompt, or part of one."""
CASES = [
    (family, framework, way)
    for family, framework in (SERVED if RUNS_ALL else SAMPLE)
    for number, way in enumerate(MAX_STEP_TOKENS)
    if RUNS_ALL or NAMES.index(family) // 2 % 2 == number
]
"""Each family with both frameworks in both ways; in the sample with one, and each framework in both ways."""


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[CheckpointName, Framework, str]:
    """Return a family, a framework and the passes' size in turn."""
    case: tuple[CheckpointName, Framework, str] = request.param
    return case


@pytest.fixture(scope="module")
def family(case: tuple[CheckpointName, Framework, str]) -> CheckpointName:
    """Return the case's family."""
    return case[0]


@pytest.fixture(scope="module")
def engine(case: tuple[CheckpointName, Framework, str]) -> Iterator[Engine]:
    """Return a running engine of the case."""
    family, framework, way = case
    engine = start_engine(load_runner(framework, checkpoint(family)), max_step_tokens=MAX_STEP_TOKENS[way])
    yield engine
    engine.close()


def _prompts() -> list[list[int]]:
    """Return prompts that begin alike, of lengths around the borders of blocks, one within another.

    After none of them are a family's best two tokens as near to each other as two orders of sums.
    """
    random_ids = random.Random(8)
    common = [random_ids.randrange(3, 512) for _ in range(2 * BLOCK_TOKENS + 5)]
    others = [[random_ids.randrange(3, 512) for _ in range(length)] for length in (1, BLOCK_TOKENS, 90)]
    return [common, common[: 2 * BLOCK_TOKENS], *([*common[: 2 * BLOCK_TOKENS], *other] for other in others), [9, 8, 7]]


def _submit_together(engine: Engine, requests: list[tuple[str, list[int], SamplingParams]]) -> list[Generation]:
    """Start generations that the engine sees at once."""
    with held(engine):
        return [generate(engine, name, prompt, params) for name, prompt, params in requests]


def test_equal_and_similar_prompts_at_once_give_the_tokens_of_each_alone(
    engine: Engine, family: CheckpointName
) -> None:
    """Shared blocks, copied tails and shared logits are those that each would have computed."""
    prompts = _prompts() * NUM_COPIES
    requests = [(f"r{index}", prompt, greedy(NUM_NEW_TOKENS)) for index, prompt in enumerate(prompts)]

    generations = _submit_together(engine, requests)

    outputs = [generation.tokens() for generation in generations]
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = reference_generate(checkpoint(family), prompt, NUM_NEW_TOKENS, guess=output)
        assert output == expected, f"{len(prompt)} tokens"
    num_shared = sum(generation.ended.prompt_work.num_shared_tokens for generation in generations)
    assert num_shared >= len(prompts[0]), "nothing was shared: the test proves nothing"


def test_seeded_draws_after_equal_prompts_are_those_of_each_alone(engine: Engine) -> None:
    """The copies share logits and draw for themselves."""
    prompt = _prompts()[0]
    sampled = [SamplingParams(temperature=1.5, ignore_eos=True, max_tokens=8, seed=seed) for seed in SEEDS]
    alone = [generate(engine, f"alone{index}", prompt, params).tokens() for index, params in enumerate(sampled)]
    unseen = [*prompt[:-1], 3]  # the same blocks are in the cache now, but not those of this prompt's end

    together = _submit_together(engine, [(f"r{index}", prompt, params) for index, params in enumerate(sampled)])
    first = _submit_together(engine, [(f"u{index}", unseen, params) for index, params in enumerate(sampled)])

    assert [generation.tokens() for generation in together] == alone
    outputs = [generation.tokens() for generation in first]
    again = [generate(engine, f"v{index}", unseen, params).tokens() for index, params in enumerate(sampled)]
    assert outputs == again
