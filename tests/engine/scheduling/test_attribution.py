"""A prompt has of each pass what it would take alone: computing and waiting are told apart."""

from __future__ import annotations

import pytest

from baton.engine.request import KvExportSpec, Purpose
from baton.engine.scheduling.scheduler import attribute
from baton.engine.sequence import Sequence
from baton.engine.step_cost import StepCost, StepWork
from engine.rig import prompt_of, request_of
from engine.stepper import Exported, Stepper

PASS_SECONDS = 0.5
BY_POSITIONS = StepCost(0.0, 1.0, 0.0)


class _Timed:
    """Passes that take half a second each, beside which positions are all that counts."""

    def __init__(self, **limits: int) -> None:
        self.stepper = Stepper(num_blocks=64, **limits)
        self.seconds = 0.0

    def add(self, length: int, name: str, seed: int) -> Sequence:
        """Queue a prompt."""
        return self.stepper.add(request_of(prompt_of(length, seed), name))

    def step(self) -> None:
        """Compute a pass, and say what it took before its tokens are told."""
        scheduler = self.stepper.scheduler
        step = scheduler.schedule()
        attribute(step, PASS_SECONDS, BY_POSITIONS, self.stepper.limits.max_step_tokens)
        self.seconds += PASS_SECONDS
        scheduler.progress.begin(step)
        sampled = [entry.sequence for entry in step.sampled]
        scheduler.progress.enter(sampled, [1] * len(sampled))
        for sequence in sampled:
            sequence.stats.first_token = sequence.stats.first_token or self.seconds


def test_prompts_of_a_pass_share_it_by_their_positions() -> None:
    """Together they took all of every pass: nothing is lost, and nothing counted twice."""
    timed = _Timed(max_step_tokens=16)
    prompts = [timed.add(24, "long", 1), timed.add(8, "short", 2)]
    for _ in range(2):
        timed.step()

    assert [each.stats.computed_seconds for each in prompts] == pytest.approx([0.75, 0.25])


def test_decoding_sequences_have_no_part_of_a_pass_with_prompts() -> None:
    """What they add is what the prompt's own computation takes on a busy node; alone, a pass counts for nobody."""
    timed = _Timed(max_step_tokens=16)
    first = timed.add(8, "first", 1)
    timed.step()
    timed.step()
    second = timed.add(12, "second", 2)
    timed.step()

    assert (first.stats.computed_seconds, second.stats.computed_seconds) == (PASS_SECONDS, PASS_SECONDS)


def test_a_sequence_that_takes_over_what_another_computes_took_nothing() -> None:
    """It only waited."""
    timed = _Timed(max_step_tokens=16)
    prompts = [timed.add(8, "leader", 1), timed.add(8, "duplicate", 1)]
    timed.step()

    assert [each.stats.computed_seconds for each in prompts] == [PASS_SECONDS, 0.0]
    assert prompts[1].stats.first_token == PASS_SECONDS


def test_late_positions_weigh_more_by_their_attention() -> None:
    """A position attends to all before it."""
    timed = _Timed(max_step_tokens=16)
    late, early = timed.add(24, "late", 1), timed.add(8, "early", 2)
    step = timed.stepper.scheduler.schedule()
    timed.stepper.scheduler.progress.begin(step)
    before = late.stats.computed_seconds
    step = timed.stepper.scheduler.schedule()
    spans = dict(zip((each.request_id for each in step.sequences), step.spans, strict=True))
    attribute(step, 1.0, StepCost(0.0, 1.0, 1.0), 16)

    works = {name: len(span.token_ids) * (1 + span.start + len(span.token_ids) / 2) for name, span in spans.items()}
    share = works["late"] / sum(works.values())
    assert late.stats.computed_seconds - before == pytest.approx(share)
    assert early.stats.computed_seconds == pytest.approx(1 - share)


def compute(stepper: Stepper, cost: StepCost) -> None:
    """Compute prompts up to their first tokens, each pass in the time that it costs."""
    while stepper.scheduler.running or stepper.scheduler.waiting:
        step = stepper.scheduler.schedule()
        attribute(step, cost.seconds(step.work), cost, 16)
        stepper.scheduler.progress.begin(step)
        for sampled in step.sampled:
            stepper.scheduler.finish(sampled.sequence)


def test_what_is_computed_beside_a_prompt_is_no_part_of_it() -> None:
    """Its computation is what it would be on an idle node: some passes, the last of which has few positions."""
    stepper, cost = Stepper(num_blocks=64, max_step_tokens=16), StepCost(9.0, 1.0, 0.0)
    prompts = [stepper.add(request_of(prompt_of(length, length), str(length))) for length in (33, 16, 5)]
    compute(stepper, cost)

    expected = [cost.seconds(StepWork(33, 0), 3), cost.seconds(StepWork(16, 0)), cost.seconds(StepWork(5, 0))]
    assert [each.stats.computed_seconds for each in prompts] == pytest.approx(expected)


def test_the_last_position_of_a_prompt_is_part_of_it() -> None:
    """Though a pass computes it as it does an output's."""
    stepper = Stepper(num_blocks=64, max_step_tokens=8)
    prompt = stepper.add(request_of(prompt_of(9), "prompt"))
    for seconds in (0.5, 0.25):
        step = stepper.step()
        assert step is not None
        stepper.scheduler.note_pass(step, seconds)

    assert step.is_decode
    assert prompt.stats.computed_seconds == pytest.approx(0.75)


def test_what_came_from_elsewhere_is_no_part_of_a_prompt_s_passes() -> None:
    """The last positions of a stream that broke take a pass, though 32 of 33 had come."""
    stepper, cost = Stepper(num_blocks=64, max_step_tokens=16), StepCost(9.0, 1.0, 0.0)
    prompt = stepper.add(request_of(prompt_of(33), "prompt", purpose=Purpose.RECEIVE))
    stepper.admit_receiving()
    stepper.scheduler.fall_back(prompt, 30)
    step = stepper.scheduler.schedule()
    attribute(step, 12.0, cost, 16)

    assert prompt.stats.computed_seconds == 12.0


def test_parts_of_a_short_prompt_come_to_one_pass() -> None:
    """Its first positions fill up a pass of others, the rest has the next one: alone it would read the weights once."""
    stepper = Stepper(num_blocks=64, max_step_tokens=16)
    cost = StepCost(0.0, 1.0, 0.0, least_seconds=12.0)
    first, prompt = (stepper.add(request_of(prompt_of(length, length), str(length))) for length in (13, 10))
    compute(stepper, cost)

    assert first.stats.computed_seconds == 13.0
    assert prompt.stats.computed_seconds == 12.0


def test_a_prompt_in_chunks_takes_a_pass_for_each() -> None:
    """Exports have such, so that their layers travel while others are computed."""
    stepper, cost = Stepper(num_blocks=64, max_step_tokens=16), StepCost(9.0, 1.0, 0.0)
    export = KvExportSpec(Exported(), chunk_tokens=4)
    prompt = stepper.add(request_of(prompt_of(12), "prompt", purpose=Purpose.PREFILL, export=export))
    compute(stepper, cost)

    assert prompt.stats.computed_seconds == 3 * 9.0 + 12
