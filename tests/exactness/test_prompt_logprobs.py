"""Log-probabilities of the prompt's own tokens equal transformers' log-softmax."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from baton.engine.engine import Engine
from baton.engine.events import Failed, PromptScored, TokenReady
from baton.engine.sampling import SampledToken
from baton.engine.sequence import SCORED_CHUNK_TOKENS
from checkpoints import CheckpointName, checkpoint, reference_generate, reference_logits
from exactness.handover import Generation, generate, greedy, start_engine
from exactness.loading import BLOCK_TOKENS, SAMPLE, SERVED, Framework, load_runner
from order import RUNS_ALL

NUM_ALTERNATIVES = 5
TOLERANCES: dict[str, float] = {"torch": 3e-4, "mlx": 5e-4}
"""By engine. Measured: 1.2e-4 and 2e-4 at most, where the reference itself is 1.5e-4 off what float64 gives."""
SCORED = replace(greedy(4), num_prompt_logprobs=NUM_ALTERNATIVES)


@pytest.fixture(scope="module", params=SERVED if RUNS_ALL else SAMPLE, ids="-".join)
def served(request: pytest.FixtureRequest) -> tuple[CheckpointName, Framework]:
    """Return each family with each framework in turn, or in the sample with one of them."""
    pair: tuple[CheckpointName, Framework] = request.param
    return pair


@pytest.fixture(scope="module")
def family(served: tuple[CheckpointName, Framework]) -> CheckpointName:
    """Return its family."""
    return served[0]


@pytest.fixture(scope="module")
def engine(served: tuple[CheckpointName, Framework]) -> Iterator[Engine]:
    """Return a running engine of it."""
    family, framework = served
    engine = start_engine(load_runner(framework, checkpoint(family)))
    yield engine
    engine.close()


def _prompt(length: int, seed: int = 6) -> list[int]:
    """Return tokens after which no family's best two are as near to each other as two orders of sums."""
    random_ids = random.Random(seed)
    return [random_ids.randrange(3, 512) for _ in range(length)]


def _scores(generation: Generation) -> list[SampledToken]:
    """Return the scores of a prompt; all must come before the first token."""
    scores: list[SampledToken] = []
    while not isinstance(event := generation.events.get(timeout=60.0), TokenReady):
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, PromptScored):
            assert event.position == len(scores) + 1
            scores += event.tokens
    return scores


def _check(engine: Engine, scores: list[SampledToken], prompt: list[int], family: CheckpointName) -> None:
    tolerance = TOLERANCES[engine.runner.info.engine]
    assert [score.token_id for score in scores] == prompt[1:]
    expected = torch.log_softmax(reference_logits(checkpoint(family), prompt).double(), dim=-1)
    for position, score in enumerate(scores):
        assert score.logprob == pytest.approx(float(expected[position, score.token_id]), abs=tolerance)
        best = torch.topk(expected[position], NUM_ALTERNATIVES)
        assert [alternative.logprob for alternative in score.alternatives] == pytest.approx(
            best.values.tolist(), abs=tolerance
        )
        for alternative in score.alternatives:
            assert alternative.logprob == pytest.approx(float(expected[position, alternative.token_id]), abs=tolerance)


@pytest.mark.parametrize("length", [2, BLOCK_TOKENS + 1, 2 * SCORED_CHUNK_TOKENS + 3])
def test_a_prompt_is_scored_as_transformers_would(engine: Engine, family: CheckpointName, length: int) -> None:
    """Chunk by chunk, beside others in the same passes, and the generation after it is not disturbed."""
    prompt = _prompt(length)
    beside = generate(engine, "beside", _prompt(40, seed=8), greedy(8))
    generation = generate(engine, "scored", prompt, SCORED)

    scores = _scores(generation)

    _check(engine, scores, prompt, family)
    assert generation.tokens(1) == reference_generate(checkpoint(family), prompt, 4)[1:]
    assert beside.tokens() == reference_generate(checkpoint(family), _prompt(40, seed=8), 8)


def test_a_cached_prompt_is_scored_all_the_same(engine: Engine, family: CheckpointName) -> None:
    """The cache holds K and V, no logits: every position is computed again."""
    prompt = _prompt(70)
    generate(engine, "before", prompt, greedy(2)).tokens()

    generation = generate(engine, "scored", prompt, SCORED)
    scores = _scores(generation)
    generation.tokens(1)

    _check(engine, scores, prompt, family)
    assert generation.ended.prompt_work.num_cached_tokens == 0


def test_a_prompt_of_one_token_has_no_scores(engine: Engine) -> None:
    """There is nothing before it to judge it by."""
    generation = generate(engine, "scored", [5], SCORED)

    assert _scores(generation) == []
