"""What a pass is planned to compute."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from baton.engine.scheduling.step import Step
from engine.rig import GREEDY, prompt_of, request_of
from engine.stepper import Stepper


def test_a_pass_brings_each_of_its_sequences_a_token_and_no_other() -> None:
    """One that were left out would wait for ever."""
    stepper = Stepper(num_blocks=64)
    sequences = [stepper.add(request_of(prompt_of(length), f"r{length}")) for length in (3, 5)]

    with pytest.raises(ValueError, match="shorter"):
        stepper.scheduler.progress.enter(sequences, [7])


def test_a_pass_without_a_duration_says_nothing_of_how_long_blocks_may_be_copied() -> None:
    """Mocks without a clock, and passes that were taken back, have none."""
    stepper = Stepper(num_blocks=64)
    stepper.add(request_of(prompt_of(5), "one"))
    step = stepper.step()
    assert step is not None
    for seconds in (0.01, 0.02, 0.0, 0.0):
        stepper.scheduler.note_pass(step, seconds)

    assert stepper.scheduler.offload.max_copy_seconds == 0.01


@pytest.mark.parametrize("num_passes", [1, 4])
def test_a_batch_that_goes_on_is_planned_where_it_is_then(num_passes: int) -> None:
    """Behind a pass, or several in a row: by what it attends to, its time is predicted."""
    stepper = Stepper(num_blocks=64)
    long = replace(GREEDY, max_tokens=60, ignore_eos=True)
    sequences = [stepper.add(request_of(prompt_of(length), f"r{length}", long)) for length in (3, 5)]
    stepper.step()
    step = stepper.scheduler.schedule()
    stepper.scheduler.progress.lengthen(step, num_passes)
    stepper.scheduler.progress.begin(step)
    starts = [sequence.num_computed for sequence in sequences]

    following = stepper.scheduler.schedule()

    assert step.num_passes == num_passes
    assert [span.start for span in following.spans] == starts == [3 + num_passes, 5 + num_passes]
    assert following.num_pairs == sum(starts)
    assert following.num_tokens == 2


def test_a_position_behind_a_whole_prompt_is_no_prompt() -> None:
    """However it is added: the next pass may go on from where a pass of such ends."""
    stepper = Stepper(num_blocks=64)
    sequence = stepper.add(request_of(prompt_of(5), "one"))
    stepper.step()
    one, two = Step(), Step()
    one.add(sequence, 1)
    sequence.num_computed -= 1
    two.add(sequence, 2)

    assert (one.is_decode, one.num_prompts, one.num_ended) == (True, 0, 0)
    assert (two.is_decode, two.num_prompts, two.num_ended) == (False, 1, 1)


def test_a_pass_without_prompts_is_judged_by_such_passes() -> None:
    """A step of many sequences has as many positions as a short prompt, and takes another time."""
    stepper = Stepper(num_blocks=64)
    stepper.add(request_of(prompt_of(3), "one", replace(GREEDY, max_tokens=20, ignore_eos=True)))
    for _ in range(14):
        step = stepper.step()
        assert step is not None
        stepper.scheduler.note_pass(step, 0.25)

    assert 0.25 < stepper.scheduler.longest_seconds(step) < math.inf


@pytest.mark.parametrize(("reading_seconds", "num_together"), [(1.5, 4), (0.2, 1)])
def test_prompts_share_a_pass_by_what_the_cache_lacks_of_them(reading_seconds: float, num_together: int) -> None:
    """Two positions of each: where the weights take as long as seven to read, four prompts do so once."""
    stepper = Stepper(num_blocks=64, max_batch_size=8, max_step_tokens=32, reading_seconds=reading_seconds)
    prefix, once = prompt_of(12), replace(GREEDY, max_tokens=1)
    for index, length in enumerate((12, 20, 28)):
        stepper.add(request_of([*prefix, *prompt_of(length, 50 + index)], f"before-{index}", once))
        step = stepper.step()
        assert step is not None
        stepper.scheduler.note_pass(step, 0.2 * step.num_tokens)
    sequences = [stepper.add(request_of([*prefix, 90 + index, 95], f"r{index}", once)) for index in range(4)]

    step = stepper.scheduler.schedule()

    assert step.sequences == sequences[:num_together]
