"""Prompts that are there at the same time: what they have in common is computed once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.engine.request import KvExportSpec, Purpose
from baton.engine.sequence import Phase
from engine.rig import GREEDY, expected_tokens, prompt_of, request_of
from engine.stepper import BLOCK_TOKENS, Exported, Stepper, output_of, run

WIDE = {"max_step_tokens": 64, "max_batch_size": 8, "num_blocks": 64}


@pytest.mark.parametrize("length", [2, BLOCK_TOKENS - 1, 3 * BLOCK_TOKENS, 3 * BLOCK_TOKENS + 1, 15])
def test_equal_prompts_are_computed_once_and_all_get_their_first_token_in_that_pass(length: int) -> None:
    """Also the last, partial block: it is copied, and each goes on in its own."""
    stepper = Stepper(**WIDE)
    equal = [stepper.add(request_of(prompt_of(length), f"r{index}")) for index in range(4)]

    step = stepper.step()

    assert step is not None
    assert step.num_tokens == length
    assert [sampled.sequence for sampled in step.sampled] == equal
    run(stepper)
    assert [output_of(sequence) for sequence in equal] == [expected_tokens(prompt_of(length), 8)] * 4
    assert [sequence.stats.num_shared for sequence in equal] == [0, length, length, length]


def test_a_shared_beginning_is_computed_once_in_the_pass_that_computes_the_rest() -> None:
    """Nobody waits for another pass: the others' spans read the blocks that the first one writes."""
    stepper = Stepper(**WIDE)
    common = prompt_of(2 * BLOCK_TOKENS)
    prompts = [(*common, *prompt_of(3, seed)) for seed in (2, 3, 4)]
    sequences = [stepper.add(request_of(prompt, f"r{index}")) for index, prompt in enumerate(prompts)]

    step = stepper.step()

    assert step is not None
    assert [len(span.token_ids) for span in step.spans] == [11, 3, 3]
    run(stepper)
    assert [output_of(sequence) for sequence in sequences] == [expected_tokens(prompt, 8) for prompt in prompts]


def test_first_tokens_come_in_order_of_arrival() -> None:
    """Also where a later prompt is computed before the copy of an earlier one is taken."""
    stepper = Stepper(**WIDE)
    names = ["a", "b", "a again", "c", "b again"]
    for name in names:
        stepper.add(request_of(prompt_of(10, seed=ord(name[0])), name))

    step = stepper.step()

    assert step is not None
    assert [sampled.sequence.request_id for sampled in step.sampled] == names
    assert step.num_tokens == 30


def test_equal_prompts_draw_their_own_tokens() -> None:
    """They share logits, not choices: the seed is each request's own."""
    stepper = Stepper(**WIDE)
    hot = replace(GREEDY, temperature=100.0, max_tokens=1)
    sequences = [stepper.add(request_of(prompt_of(10), f"r{seed}", replace(hot, seed=seed))) for seed in (1, 2, 3, 1)]

    stepper.step()

    first, second, third, again = (output_of(sequence)[0] for sequence in sequences)
    assert len({first, second, third}) == 3
    assert again == first


def test_who_needs_more_of_a_long_prompt_waits_until_it_is_computed() -> None:
    """A chunk a pass; those behind the one that waits are not held up."""
    stepper = Stepper(max_step_tokens=8, num_blocks=32)
    stepper.add(request_of(prompt_of(30), "leader"))
    duplicate = stepper.add(request_of(prompt_of(30), "duplicate"))
    other = stepper.add(request_of(prompt_of(6, seed=2), "other"))
    passes = [stepper.step() for _ in range(6)]

    assert other.phase is not Phase.WAITING
    assert [step and step.num_tokens for step in passes] == [8, 8, 8, 8, 6, 3]
    assert (duplicate.stats.num_cached, len(output_of(duplicate))) == (20, 3)


def test_nobody_waits_for_what_a_lower_priority_computes() -> None:
    """It would wait as long as the other has to."""
    stepper = Stepper(max_step_tokens=8, num_blocks=32)
    low = stepper.add(request_of(prompt_of(30), "low", priority=5))
    stepper.step()
    high = stepper.add(request_of(prompt_of(30), "high"))
    even = stepper.add(request_of(prompt_of(30), "even"))
    stepper.step()
    assert high.phase is Phase.RUNNING
    assert even.phase is Phase.WAITING

    run(stepper)

    assert [output_of(each) for each in (low, high, even)] == [expected_tokens(prompt_of(30), 8)] * 3
    assert even.stats.num_cached + even.stats.num_shared >= 28


def test_who_waits_computes_for_itself_when_the_other_is_gone() -> None:
    """Only what was complete is taken over."""
    stepper = Stepper(max_step_tokens=8, num_blocks=32)
    leader = stepper.add(request_of(prompt_of(30), "leader"))
    follower = stepper.add(request_of(prompt_of(30), "follower"))
    stepper.step()
    assert follower.phase is Phase.WAITING

    stepper.scheduler.finish(leader)
    run(stepper)

    assert (follower.stats.num_cached, follower.stats.num_shared) == (8, 0)
    assert output_of(follower) == expected_tokens(prompt_of(30), 8)


def test_who_is_not_part_of_a_pass_takes_nothing_over_that_dies_with_it() -> None:
    """The pass was full when its turn came, and failed: the blocks that the others filled hold nothing."""
    stepper = Stepper(max_step_tokens=11, num_blocks=32)
    common = prompt_of(2 * BLOCK_TOKENS)
    stepper.add(request_of((*common, *prompt_of(3, 2)), "leader"))
    follower = stepper.add(request_of((*common, *prompt_of(3, 3)), "follower"))

    stepper.step(fails=True)
    run(stepper)

    assert output_of(follower) == expected_tokens(follower.request.prompt_token_ids, 8)


@pytest.mark.parametrize("fields", [{"is_cache_bypassed": True}, {"cache_salt": "other"}])
def test_requests_that_may_not_share_a_cache_share_no_computation(fields: dict[str, object]) -> None:
    """Their time would tell what others ask; a benchmark would measure nothing."""
    stepper = Stepper(**WIDE)
    for index in range(2):
        stepper.add(request_of(prompt_of(10), f"plain{index}"))
        stepper.add(request_of(prompt_of(10), f"apart{index}", **fields))

    step = stepper.step()

    assert step is not None
    assert step.num_tokens == (30 if "is_cache_bypassed" in fields else 20)


def test_prefills_hand_out_what_another_computed() -> None:
    """The second reads it from the blocks, one pass later, when it is there."""
    stepper = Stepper(**WIDE)
    exports = [Exported(), Exported()]
    for index, export in enumerate(exports):
        stepper.add(request_of(prompt_of(10), f"r{index}", purpose=Purpose.PREFILL, export=KvExportSpec(export)))

    lengths = [step.num_tokens for step in iter(stepper.step, None)]

    assert lengths == [10, 2]
    for export in exports:
        export.check(list(prompt_of(10)))
        assert len(export.positions) == 30


def test_a_prompt_that_is_scored_is_computed_from_its_beginning() -> None:
    """Every position's logits are wanted; its blocks serve others all the same."""
    stepper = Stepper(**WIDE)
    stepper.add(request_of(prompt_of(10), "before"))
    run(stepper)
    scored = stepper.add(request_of(prompt_of(10), "scored", replace(GREEDY, num_prompt_logprobs=0)))
    duplicate = stepper.add(request_of(prompt_of(10), "duplicate"))

    step = stepper.step()

    assert step is not None
    assert (step.num_tokens, scored.stats.num_cached, len(stepper.scores[scored])) == (10, 0, 9)
    assert (duplicate.stats.num_cached, output_of(duplicate)) == (8, output_of(scored))


def test_equal_prompts_are_all_computed_where_sharing_is_off() -> None:
    """All in one pass."""
    stepper = Stepper(**WIDE, shares_prompts=False)
    for index in range(3):
        stepper.add(request_of(prompt_of(10), f"r{index}"))

    step = stepper.step()

    assert step is not None
    assert step.num_tokens == 30
