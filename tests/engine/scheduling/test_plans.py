"""What the scheduler decides in some scenes, pass by pass, is what `plans/` says: a change of a decision shows there.

BATON_PLANS=write writes the files anew; the diff is what a change does to whom.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from baton.engine.request import EngineRequest, KvExportSpec, Purpose
from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step import Span, Step
from baton.engine.sequence import Phase, Sequence
from baton.kv.pool import BlockPool
from engine.rig import GREEDY, prompt_of, request_of
from engine.scheduling.schedules import play, random_requests
from engine.stepper import BLOCK_BYTES, BLOCK_TOKENS, Stepper, sequence_of

PLANS = Path(__file__).parent / "plans"
TOKEN = 1
"""What everybody generates: no end token."""
MAX_PASSES = 400


class Scene(NamedTuple):
    """What a scheduler has to deal with."""

    seed: int
    limits: SchedulerLimits
    num_blocks: int = 40
    num_requests: int = 20
    tenants: str = " "
    num_ahead: int = 1
    """Passes that are planned before the tokens of the one before are there."""
    suspects: float = 0.0
    """Share of requests that are suspected of what ended a process."""
    failing: float = 0.0
    """Share of passes that fail."""
    num_state_slots: int = 0
    num_waiting: int = 100
    """Requests that may wait, but for those of tenants that have less than their share."""


SCENES = {
    "plain": Scene(1, SchedulerLimits(6, 16)),
    "by turns": Scene(2, SchedulerLimits(6, 24), tenants="abc"),
    "few blocks": Scene(3, SchedulerLimits(8, 16), num_blocks=20),
    "few places": Scene(4, SchedulerLimits(2, 12), tenants="ab"),
    "no sharing": Scene(6, SchedulerLimits(6, 16, shares_prompts=False), num_ahead=0),
    "in time": Scene(7, SchedulerLimits(8, 32, target_tpot_seconds=0.004)),
    "in little time": Scene(15, SchedulerLimits(12, 48, target_tpot_seconds=0.0055), num_blocks=120, num_ahead=0),
    "suspects": Scene(8, SchedulerLimits(6, 16), tenants="ab", suspects=0.3),
    "suspects of nobody": Scene(9, SchedulerLimits(6, 16), suspects=0.3, num_ahead=0),
    "failures": Scene(10, SchedulerLimits(6, 12), failing=0.25, num_ahead=0),
    "failures by turns": Scene(11, SchedulerLimits(6, 24), tenants="ab", failing=0.1, num_ahead=0),
    "states": Scene(12, SchedulerLimits(6, 16), num_state_slots=8),
    "few states": Scene(13, SchedulerLimits(6, 16), num_state_slots=3),
    "a long queue": Scene(14, SchedulerLimits(4, 16), num_blocks=60, tenants="abc", num_requests=26, num_waiting=5),
}


class Scenery:
    """Plays a scene on a scheduler without a device, and writes down what it decides."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._random = scene, Random(scene.seed)
        self.scheduler = Scheduler(
            BlockPool(scene.num_blocks, BLOCK_TOKENS),
            scene.limits,
            block_bytes=BLOCK_BYTES,
            num_state_slots=scene.num_state_slots,
        )
        self._room = True
        self._now = 0.0
        self.sequences: list[Sequence] = []

    def lines(self) -> Iterator[str]:
        """Yield a line for each plan, and at the end one for each request."""
        arriving = [self._request(index) for index in range(self._scene.num_requests)]
        in_flight: list[Step] = []
        for number in range(MAX_PASSES):
            self._now += 0.01
            while arriving and self._random.random() < 0.7:
                request = arriving.pop()
                if self.scheduler.may_wait(request, self._scene.num_waiting):
                    self._add(request)
                else:
                    yield f"{number}: {request.request_id} is refused"
            self._room = self._random.random() < 0.7
            living = [each for each in self.sequences if each.phase is not Phase.FINISHED]
            if not living and not arriving:
                break
            if living and self._random.random() < 0.03:
                self.scheduler.finish(gone := self._random.choice(living))
                yield f"{number}: {gone.request_id} is gone"
            if beside := self.scheduler.admit_receiving():
                yield f"{number}: beside the pass {names(beside)}"
            step = self.scheduler.schedule()
            if step.is_decode and step.spans and not has_waiting(self.scheduler) and self._random.random() < 0.3:
                self.scheduler.progress.lengthen(step, 3)
            yield f"{number}: {told(step)}"
            yield from self._receive(number)
            if step.spans:
                if self.scheduler.states:
                    step.spans = self.scheduler.states.placed(step.sequences, step.spans)
                self.scheduler.progress.begin(step)
                in_flight.append(step)
            num_ahead = 0 if self.scheduler.has_suspects or not step.spans else self._scene.num_ahead
            while len(in_flight) > num_ahead:
                if self._random.random() < self._scene.failing:
                    yield f"{number}: failed {names(in_flight[0].members)}"
                    self._fail(in_flight)
                else:
                    self._end(in_flight.pop(0))
            self.scheduler.check_integrity()
        assert not arriving
        assert all(each.phase is Phase.FINISHED for each in self.sequences), "the requests did not end"
        yield from map(summary, self.sequences)

    def _request(self, index: int) -> EngineRequest:
        random = self._random
        purpose = random.choice([Purpose.GENERATE, Purpose.GENERATE, Purpose.RECEIVE, Purpose.PREFILL])
        export = KvExportSpec(lambda *_: None, random.choice([0, 4, 9]), may_begin=lambda: self._room)
        is_scored = purpose is Purpose.GENERATE and random.random() < 0.2
        params = replace(GREEDY, max_tokens=random.choice([1, 3, 9, 20]), num_prompt_logprobs=1 if is_scored else None)
        return request_of(
            prompt_of(random.choice([1, 4, 5, 9, 17, 33, 47]), seed=random.choice([1, 1, 2, 3, index])),
            f"{purpose.value[0]}{index}",
            replace(params, ignore_eos=True),
            purpose=purpose,
            export=export if purpose is Purpose.PREFILL else None,
            priority=random.choice([0, 0, 0, 1, -1]),
            tenant=random.choice(self._scene.tenants).strip(),
            tenant_weight=random.choice([1, 2]),
            is_suspect=purpose is Purpose.GENERATE and random.random() < self._scene.suspects,
            is_cache_bypassed=random.random() < 0.1,
            adapter="tuned" if random.random() < 0.1 else "",
        )

    def _add(self, request: EngineRequest) -> None:
        sequence = sequence_of(request)
        self.scheduler.add(sequence, self._now)
        self.sequences.append(sequence)

    def _receive(self, number: int) -> Iterator[str]:
        for sequence in list(self.scheduler.receiving):
            what = self._random.choice(["wait", "wait", "commit", "fall back", "part"])
            if what == "commit":
                sequence.token_ids.append(TOKEN)
                sequence.stats.first_token = self._now
                if sequence.finish_reason():
                    self.scheduler.finish(sequence)
                else:
                    self.scheduler.commit_received(sequence)
            elif what != "wait":
                self.scheduler.fall_back(sequence, len(sequence.token_ids) // 2 if what == "part" else 0)
            if what != "wait":
                yield f"{number}: {what} {sequence.request_id}"

    def _end(self, step: Step) -> None:
        step.num_collected = 1
        self.scheduler.note_pass(step, step.num_passes * (0.002 + 1e-4 * step.num_tokens + 1e-6 * step.num_pairs))
        for _ in range(step.num_passes):
            sequences = [each.sequence for each in step.sampled if each.sequence.phase is not Phase.FINISHED]
            self.scheduler.progress.enter(sequences, [TOKEN] * len(sequences))
            for sequence in sequences:
                sequence.stats.first_token = sequence.stats.first_token or self._now
                if sequence.finish_reason():
                    self.scheduler.progress.keep_computed(sequence)
                    self.scheduler.finish(sequence)

    def _fail(self, in_flight: list[Step]) -> None:
        step = in_flight.pop(0)
        for sequence in [each for each in step.members if each.phase is Phase.RECEIVING]:
            self.scheduler.finish(sequence)
        members = [each for each in step.members if each.phase is not Phase.FINISHED]
        if len(members) > 1:
            self.scheduler.isolate(step)
        else:
            for sequence in members:
                self.scheduler.finish(sequence)
            self.scheduler.undo(step)
        while in_flight:
            self.scheduler.undo(in_flight.pop())


def has_waiting(scheduler: Scheduler) -> bool:
    """Return whether somebody waits for blocks or for KV."""
    return bool(scheduler.waiting or scheduler.receiving)


def names(sequences: list[Sequence]) -> str:
    """Return their names in order."""
    return " ".join(each.request_id for each in sequences)


def told(step: Step) -> str:
    """Return all that a plan says in a line; tokens that are sampled have a star."""
    sampled = {each.sequence for each in step.sampled}
    spans = [
        f"{sequence.request_id}{_span(span)}{'*' if sequence in sampled else ''}"
        for sequence, span in zip(step.sequences, step.spans, strict=True)
    ]
    flags = [
        name
        for name in ("is_decode", "is_alone", "is_following", "has_unanswered", "has_sinks", "has_adapters")
        if getattr(step, name)
    ]
    scored = " ".join(f"{each.sequence.request_id}:{each.num_rows}" for each in step.scored)
    numbers = (step.num_passes, step.num_tokens, step.num_pairs, step.num_rows, step.num_prompts, step.num_ended)
    parts = [
        " ".join(spans),
        f"+ {names(step.admitted)}" if step.admitted else "",
        f"= {names([each.sequence for each in step.duplicates])}" if step.duplicates else "",
        f"scored {scored}" if scored else "",
        f"swaps {len(step.swaps.outs)} {len(step.swaps.ins)}" if step.swaps.outs or step.swaps.ins else "",
        " ".join(flags),
        "/".join(map(str, numbers)),
    ]
    return ", ".join(filter(None, parts))


def _span(span: Span) -> str:
    row = "" if span.follows_row is None else f"<{span.follows_row}"
    logits = "" if span.logits_from is None else f"^{span.logits_from}"
    sink = "!" if span.layer_sink is not None else ""
    return f"[{span.start}:{span.end}{logits}{row}{sink}]" + "~" * (not span.needs_logits)


def summary(sequence: Sequence) -> str:
    """Return what a request tells at its end."""
    stats = sequence.stats
    return (
        f"{sequence.request_id}: {sequence.num_prompt_tokens} + {sequence.num_output_tokens} tokens, computed "
        f"{stats.computed_seconds * 1e3:.3f} ms, cached {stats.num_cached}, shared {stats.num_shared}, "
        f"preempted {stats.num_preemptions}, charged {sequence.num_charged_outputs:.4g}"
    )


def check(name: str, lines: list[str]) -> None:
    """Prove that lines are those of a file, or write it."""
    file, text = PLANS / f"{name.replace(' ', '_')}.txt", "\n".join(lines) + "\n"
    if os.environ.get("BATON_PLANS") == "write":
        file.write_text(text)
    assert text == file.read_text(), f"BATON_PLANS=write writes {file.name} anew; look at the diff"


@pytest.mark.parametrize("name", SCENES)
def test_plans_are_what_they_were(name: str) -> None:
    """Turns, sharing, preemption, suspects, failures, receptions, exports and passes behind passes."""
    check(name, list(Scenery(SCENES[name]).lines()))


@pytest.mark.parametrize(("host_blocks", "copied_blocks", "seed"), [(6, 0, 1), (40, 2, 2), (40, 1, 3)])
def test_plans_with_host_memory_are_what_they_were(host_blocks: int, copied_blocks: int, seed: int) -> None:
    """What leaves the device, and what comes back."""
    random, lines = Random(seed), list[str]()
    stepper = Stepper(14, max_step_tokens=16, host_blocks=host_blocks, copied_blocks=copied_blocks)
    schedule = stepper.scheduler.schedule

    def noted() -> Step:
        step = schedule()
        lines.append(told(step))
        return step

    stepper.scheduler.schedule = noted  # type: ignore[method-assign]
    play(stepper, random_requests(random, 12), random)
    check(f"host memory {host_blocks} {copied_blocks}", [*lines, *map(summary, stepper.sequences)])
