"""Whatever comes when: no block leaked or shared wrongly, every request ends, with the tokens that it has alone."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.sampling import SampledToken
from baton.engine.sequence import Phase, Sequence
from engine.rig import LAYOUT, expected_tokens
from engine.scheduling.schedules import LONGEST_OUTPUT, LONGEST_PROMPT, check_contents, play, random_requests
from engine.stepper import BLOCK_TOKENS, Exported, Stepper, output_of

NUM_SCHEDULES = int(os.environ.get("BATON_SCHEDULES", "200"))
"""Random schedules played; more on demand."""
SMALLEST_POOL = -(-(LONGEST_PROMPT + LONGEST_OUTPUT - 1) // BLOCK_TOKENS)
"""Blocks of the largest request, the last token of whose output needs none."""


@pytest.mark.timeout(300 + NUM_SCHEDULES)
@settings(max_examples=NUM_SCHEDULES, deadline=None)
@given(
    num_blocks=st.one_of(st.just(SMALLEST_POOL), st.integers(SMALLEST_POOL, 40)),
    max_batch_size=st.integers(1, 8),
    max_step_tokens=st.sampled_from([1, 3, 8, 24, 64]),
    shares_prompts=st.sampled_from([True, True, False]),
    host_blocks=st.sampled_from([0, 1, 4, 100]),
    copied_blocks=st.sampled_from([0, 1, 2]),
    target_tpot_seconds=st.sampled_from([0.0, 0.0, 0.005, 0.03]),
    computes_for_others=st.booleans(),
    num_requests=st.integers(1, 12),
    seed=st.integers(0, 2**32),
)
def test_every_request_ends_with_its_own_tokens_whatever_runs_beside_it(
    num_requests: int, seed: int, **limits: Any
) -> None:
    """Random arrivals, lengths, priorities, pools, budgets, aborts, failures and receptions."""
    random = Random(seed)
    stepper = Stepper(**limits)

    aborted = play(stepper, random_requests(random, num_requests), random)

    assert stepper.scheduler.pool.num_available == stepper.scheduler.pool.num_blocks
    stepper.scheduler.offload.check_integrity([])
    check_contents(stepper)
    for sequence in stepper.sequences:
        assert sequence.phase is Phase.FINISHED
        prompt, output = sequence.request.prompt_token_ids, output_of(sequence)
        num_delivered = len(sequence.request.output_token_ids)
        assert output == expected_tokens(prompt, len(output))
        assert sequence in aborted or len(output) == sequence.max_output_tokens
        check_scores(sequence, stepper.scores[sequence], is_complete=len(output) > num_delivered)
        check_export(sequence, is_complete=len(output) > num_delivered)


def check_scores(sequence: Sequence, scores: list[SampledToken], *, is_complete: bool) -> None:
    """Prove that a prompt's log-probabilities are those of its own positions."""
    prompt = sequence.request.prompt_token_ids
    num_scored = len(prompt) - 1 if sequence.request.is_scored else 0
    assert len(scores) == num_scored or not is_complete
    assert [score.token_id for score in scores] == list(prompt[1 : len(scores) + 1])
    for position, score in enumerate(scores):
        assert [score.alternatives[0].token_id] == expected_tokens(prompt[: position + 1], 1)


def check_export(sequence: Sequence, *, is_complete: bool) -> None:
    """Prove that a prefill handed out every layer of every position, and nothing else."""
    export, request = sequence.request.export, sequence.request
    if export is not None and isinstance(export.sink, Exported):
        token_ids = [*request.prompt_token_ids, *request.output_token_ids]
        export.sink.check(token_ids)
        assert not is_complete or len(export.sink.positions) == LAYOUT.num_layers * len(token_ids)
