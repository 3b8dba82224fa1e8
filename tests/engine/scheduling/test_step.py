"""What a pass is planned to compute."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.rig import GREEDY, prompt_of, request_of
from engine.stepper import Stepper


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
