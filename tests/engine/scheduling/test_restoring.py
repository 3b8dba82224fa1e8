"""Long prompts that come back from host memory part by part."""

from __future__ import annotations

from dataclasses import replace

from baton.engine.request import Purpose
from baton.engine.sequence import Phase, Sequence
from engine.rig import GREEDY, expected_tokens, prompt_of, request_of
from engine.scheduling.schedules import check_contents
from engine.stepper import Stepper, output_of, run

PROMPT = prompt_of(40)


def _stepper_that_has_it_in_host_memory() -> Stepper:
    """Return one that copies 2 blocks with a pass."""
    stepper = Stepper(num_blocks=24, max_step_tokens=64, host_blocks=100, copied_blocks=2)
    first = stepper.add(request_of(PROMPT, "first", replace(GREEDY, max_tokens=1)))
    run(stepper)
    pool, store = stepper.scheduler.pool, stepper.scheduler.offload.store
    block_ids = pool.match(first.hashes)
    for block_hash, contents in zip(first.hashes, stepper.runner.begin_copies(block_ids).blocks(), strict=True):
        store.put(block_hash, contents)
    pool.forget(block_ids)
    return stepper


def _talker(stepper: Stepper) -> Sequence:
    """Return a sequence that generates for a long time."""
    talker = stepper.add(request_of(prompt_of(5, seed=3), "talker", replace(GREEDY, max_tokens=30, ignore_eos=True)))
    stepper.step()
    return talker


def test_who_generates_goes_on_while_a_prompt_is_restored() -> None:
    """2 blocks with each pass; then it joins with all of them, and says what it would have said."""
    stepper = _stepper_that_has_it_in_host_memory()
    talker = _talker(stepper)
    sequence = stepper.add(request_of(PROMPT, "again"))
    num_copied, num_said = [], len(output_of(talker))

    while sequence.phase is Phase.WAITING:
        step = stepper.step()
        assert step is not None
        num_copied.append(sum(len(each.contents) for each in step.swaps.ins))
    assert num_copied == [2, 2, 2, 2, 1]
    assert len(output_of(talker)) == num_said + 5
    assert sequence.stats.num_cached == 36
    hits = stepper.scheduler.offload.hits
    run(stepper)

    assert (hits.device, hits.host) == (0, 36)
    assert output_of(sequence) == expected_tokens(PROMPT, 8)


def test_alone_a_prompt_is_restored_at_once() -> None:
    """Nobody waits for it."""
    stepper = _stepper_that_has_it_in_host_memory()
    sequence = stepper.add(request_of(PROMPT, "again"))

    step = stepper.step()

    assert step is not None
    assert [len(each.contents) for each in step.swaps.ins] == [9]
    assert sequence.phase is Phase.RUNNING


def test_a_prompt_that_loses_what_was_restored_is_restored_at_once() -> None:
    """Otherwise it could wait for ever."""
    stepper = _stepper_that_has_it_in_host_memory()
    _talker(stepper)
    sequence = stepper.add(request_of(PROMPT, "again"))
    stepper.step()
    stepper.step()

    stepper.scheduler.pool.forget(stepper.scheduler.pool.match(sequence.hashes))
    step = stepper.step()

    assert step is not None
    assert [len(each.contents) for each in step.swaps.ins] == [9]
    run(stepper)
    assert output_of(sequence) == expected_tokens(PROMPT, 8)


def test_a_part_whose_copy_fails_is_not_found() -> None:
    """What is in its blocks is not what their hashes say."""
    stepper = _stepper_that_has_it_in_host_memory()
    _talker(stepper)
    sequence = stepper.add(request_of(PROMPT, "again"))

    stepper.step(fails=True)

    assert sequence.phase is Phase.FINISHED
    assert stepper.scheduler.pool.match(sequence.hashes) == []


def test_nobody_keeps_a_part_whose_copy_fails() -> None:
    """One that receives is in no pass that could fail with it: it waits until the part is there."""
    stepper = _stepper_that_has_it_in_host_memory()
    _talker(stepper)
    stepper.add(request_of(PROMPT, "again"))
    receiver = stepper.add(request_of((*PROMPT[:8], 3), "receiver", purpose=Purpose.RECEIVE))

    step = stepper.step(fails=True)

    assert step is not None
    assert [len(each.contents) for each in step.swaps.ins] == [2]
    assert receiver.num_computed == 0
    stepper.step()
    assert receiver.phase is Phase.RECEIVING
    check_contents(stepper)
