"""Passes launched before the output of the ones before is looked at: nobody may notice, whatever happens meanwhile."""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.capacity.hardware import PRESETS
from baton.engine.engine import Engine
from baton.engine.events import Ended, Failed, TokenReady
from baton.engine.execution.passes import Pass, TokenChoice
from baton.engine.execution.pipeline import Pipeline
from baton.engine.request import EngineRequest, KvExportSpec, Purpose, SamplingParams
from baton.engine.request_registry import Deliverable, RequestRegistry, deliver
from baton.engine.runners.base import Launched, Span
from baton.engine.runners.mock import MockRunner
from baton.engine.runners.mock.passes import MockPass
from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.step import Step
from engine.faulty_runners import BreakingRunner
from engine.rig import (
    GREEDY,
    INFO,
    TIMEOUT_SECONDS,
    Listening,
    Rig,
    expected_tokens,
    mock_runner,
    prompt_of,
    request_of,
)
from engine.stepper import Stepper

ABILITIES = [(True, 8), (True, 1), (False, 8), (False, 1)]
"""Of a runner: whether a pass is launched before the output of the one before it is processed, and how many at once."""


def runner_with(abilities: tuple[bool, int], num_blocks: int = 64) -> MockRunner:
    """Return a runner that may be run ahead of as `ABILITIES` says."""
    runner = mock_runner(num_blocks)
    runner.runs_ahead, runner.max_launch_steps = abilities
    return runner


def random_params(random: Random, prompt: Sequence[int]) -> SamplingParams:
    """Return parameters under which the mock says what it says greedily, of every kind that the engine tells apart."""
    max_tokens = random.randint(1, 24)
    params = replace(GREEDY, max_tokens=max_tokens)
    text = expected_tokens(prompt, max_tokens)
    kind = random.choice(["greedy", "stop", "stop", "drawn", "filtered", "reported", "minimum", "penalised"])
    if kind == "stop":
        return replace(params, stop_token_ids=frozenset(random.sample(text, 1)))
    if kind == "drawn":
        return replace(params, temperature=0.7, seed=random.randint(-9, 9))
    if kind == "filtered":
        return replace(params, temperature=0.7, top_k=3, seed=1)
    if kind == "reported":
        return replace(params, num_top_logprobs=1)
    if kind == "minimum":
        return replace(params, min_tokens=random.randint(1, max_tokens))
    if kind == "penalised":
        return replace(params, presence_penalty=0.1)
    return params


def expected_of(request: EngineRequest) -> list[int]:
    """Return what a request is answered by."""
    text = expected_tokens(request.prompt_token_ids, request.params.max_tokens or 0)
    ends = [index for index, token in enumerate(text) if token in request.params.stop_token_ids]
    return text[: ends[0] + 1] if ends else text


def has_ended(listening: Listening) -> bool:
    """Return whether the end of a request was seen."""
    return any(isinstance(event, Ended) for event in listening.seen)


@settings(max_examples=60, deadline=None)
@given(
    abilities=st.sampled_from(ABILITIES),
    num_blocks=st.integers(14, 40),
    max_batch_size=st.integers(1, 8),
    max_step_tokens=st.sampled_from([5, 16, 64]),
    seed=st.integers(0, 2**32),
)
def test_every_request_says_its_own_tokens_with_any_runner(
    abilities: tuple[bool, int], num_blocks: int, max_batch_size: int, max_step_tokens: int, seed: int
) -> None:
    """Joins, ends, aborts and preemptions in the middle of passes; at the end no block is held, no pass is lost."""
    random = Random(seed)
    rig = Rig(
        runner_with(abilities, num_blocks),
        max_batch_size=max_batch_size,
        max_step_tokens=max_step_tokens,
    )
    with rig:
        told: list[tuple[EngineRequest, Listening]] = []
        for index in range(random.randint(1, 12)):
            prompt = prompt_of(random.randint(1, 24), seed=random.randint(1, 3))
            request = request_of(prompt, f"r{index}", random_params(random, prompt))
            told.append((request, rig.submit(request)))
            if random.random() < 0.5 and not has_ended(chosen := random.choice(told)[1]):
                chosen.until(TokenReady, Ended)
            if len(told) > 1 and random.random() < 0.2:
                rig.engine.abort(told.pop(random.randrange(len(told)))[0])
        for request, listening in told:
            if not has_ended(listening):
                assert isinstance(listening.until(Ended, Failed), Ended)
            assert listening.token_ids == expected_of(request)


def test_the_next_pass_is_launched_before_the_tokens_of_the_last_are_asked_for() -> None:
    """From the first decode pass to the last, and the last token is not waited for twice."""
    log: list[str] = []
    runner = mock_runner()
    launch = runner.launch

    def launch_noted(*arguments: Any, **options: Any) -> Launched:
        launched = launch(*arguments, **options)
        number = sum(entry.startswith("launch") for entry in log)
        log.append(f"launch {number}")
        return Noted(launched, number, log)

    runner.launch = launch_noted  # type: ignore[method-assign]
    runner.max_launch_steps = 1
    with Rig(runner) as rig:
        rig.generate(request_of(prompt_of(5), params=replace(GREEDY, max_tokens=4)))

    assert log == [
        "launch 0", "launch 1", "tokens 0", "launch 2", "tokens 1", "launch 3", "tokens 2", "tokens 3"
    ]  # fmt: skip


class Noted(MockPass):
    """A pass that writes down when its tokens are asked for."""

    def __init__(self, launched: Launched, number: int, log: list[str]) -> None:
        assert isinstance(launched, MockPass)
        vars(self).update(vars(launched))
        self._number = number
        self._log = log

    def tokens(self, step: int = 0) -> list[int]:
        """Note it."""
        self._log.append(f"tokens {self._number}")
        return super().tokens(step)


def test_steps_launched_together_are_delivered_one_by_one() -> None:
    """In order, with their indices; and no more are launched than the output may have."""
    num_steps: list[int] = []
    runner = mock_runner()
    launch = runner.launch

    def launch_noted(*arguments: Any, **options: Any) -> Launched:
        num_steps.append(options["num_steps"])
        return launch(*arguments, **options)

    runner.launch = launch_noted  # type: ignore[method-assign]
    with Rig(runner) as rig:
        listening = rig.submit(request_of(prompt_of(5), params=replace(GREEDY, max_tokens=20)))

        assert listening.result() == expected_tokens(prompt_of(5), 20)
    assert num_steps == [1, 8, 8, 3]


def test_a_command_cuts_steps_that_have_not_begun() -> None:
    """A device with a queue drops them: whoever comes waits for one step, not for eight."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    runner = MockRunner(
        mock_runner().info,
        mock_runner().hardware,
        num_blocks=64,
        block_tokens=4,
        fixed_step_seconds=1.0,
        clock=lambda: now,
        sleep=sleep,
    )
    text = list(prompt_of(5))
    text += runner.launch([Span(text, 0, [0, 1, 2, 3], needs_logits=True)]).tokens()

    together = runner.launch([Span(text[-1:], 5, [0, 1, 2, 3], needs_logits=True)], num_steps=8)

    assert together.tokens(0) == expected_tokens(text, 1)
    assert together.cut(1) == 2  # the second has begun when the first is over
    assert together.tokens(1) == expected_tokens(text, 2)[1:]
    assert now == 3.0


def test_a_pass_that_breaks_late_fails_its_own_requests_only() -> None:
    """What was launched behind it is computed again, with the blocks that others had begun to share."""
    runner = mock_runner(kind=BreakingRunner)
    assert isinstance(runner, BreakingRunner)
    prompt = (*prompt_of(12), 5)
    runner.bad_token = 5
    others = [prompt_of(length, seed=3) for length in (9, 14)]
    assert not any(5 in [*other, *expected_tokens(other, 8)] for other in others)
    with Rig(runner, max_step_tokens=64) as rig:
        sound = [rig.submit(request_of(other, f"sound{index}")) for index, other in enumerate(others)]
        broken = rig.submit(request_of(prompt, "broken"))
        failed = broken.until(Failed)

        assert isinstance(failed, Failed)
        assert "device lost" in failed.error.message
        for other, listening in zip(others, sound, strict=True):
            assert listening.result() == expected_tokens(other, 8)
        runner.bad_token = -2
        assert rig.generate(request_of(prompt, "again")) == expected_tokens(prompt, 8)


@pytest.mark.parametrize("abilities", ABILITIES)
def test_a_hand_over_is_the_same_with_any_runner(abilities: tuple[bool, int]) -> None:
    """A prefill node's engine exports while its device has other passes in its queue."""
    parts: list[tuple[int, int]] = []
    with Rig(runner_with(abilities)) as rig:
        other = rig.submit(request_of(prompt_of(9), "other", replace(GREEDY, max_tokens=60)))
        other.until(TokenReady)
        request = request_of(
            prompt_of(17, seed=2),
            purpose=Purpose.PREFILL,
            export=KvExportSpec(lambda start, layer, _kv: parts.append((start, layer))),
        )

        assert rig.generate(request) == expected_tokens(prompt_of(17, seed=2), 1)
        assert other.result() == expected_tokens(prompt_of(9), 60)
    assert {layer for _, layer in parts} == {0, 1, 2}


@pytest.mark.parametrize("abilities", [(True, 8), (True, 1), (False, 8)])
def test_a_request_joins_the_pass_after_the_one_under_way(abilities: tuple[bool, int]) -> None:
    """Running ahead must not cost a newcomer a pass: while the device is at one, the next is not planned yet.

    Newcomers come in real time, at many moments of a pass, and a busy machine may let one come late: one of twenty must
    join at once.
    """
    runner = MockRunner(INFO, PRESETS["h200"], num_blocks=64, block_tokens=4, fixed_step_seconds=0.2)
    runner.runs_ahead, runner.max_launch_steps = abilities
    arrivals: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
    num_posts = 0

    def post(deliverables: list[Deliverable]) -> None:
        nonlocal num_posts
        num_posts += 1
        deliver(deliverables)

    def listener(name: str) -> Any:
        return lambda event: (
            arrivals.put((name, event.output_index, num_posts)) if isinstance(event, TokenReady) else None
        )

    engine = Engine(runner, SchedulerLimits(), post=post)
    engine.start()
    try:
        engine.submit(request_of(prompt_of(5), "old", replace(GREEDY, max_tokens=200)), listener("old"))
        while arrivals.get(timeout=TIMEOUT_SECONDS)[1] < 5:
            pass
        num_passes_before = list[int]()
        while 1 not in num_passes_before and len(num_passes_before) < 20:
            # The device is in the first half of the next token of the old one.
            time.sleep(0.03 + 0.01 * (len(num_passes_before) % 7))
            newcomer = request_of(prompt_of(6), f"new{len(num_passes_before)}", replace(GREEDY, max_tokens=1))
            engine.submit(newcomer, listener("new"))
            posts = list[int]()
            while (arrival := arrivals.get(timeout=TIMEOUT_SECONDS))[0] == "old":
                posts.append(arrival[2])
            num_passes_before.append(sum(post < arrival[2] for post in posts))
    finally:
        engine.close()

    assert 1 in num_passes_before


def test_who_gets_kv_from_elsewhere_asks_for_it_while_a_prompt_is_computed() -> None:
    """Its way through another node begins at once, not with the end of the pass that a prompt of this node fills.

    Newcomers come in real time, at all moments of a pass, which is left alone once passes like it are known.
    """
    pass_seconds = 0.1
    runner = MockRunner(INFO, PRESETS["h200"], num_blocks=128, block_tokens=4, fixed_step_seconds=pass_seconds)
    engine = Engine(runner, SchedulerLimits(max_step_tokens=8), post=deliver)
    answers: queue.SimpleQueue[float] = queue.SimpleQueue()
    waits = list[float]()
    engine.start()
    try:
        for seed in (1, 2):
            listening = Listening()
            params = replace(GREEDY, max_tokens=1)
            engine.submit(request_of(prompt_of(200, seed), f"long{seed}", params), listening.events.put)
            if seed == 1:
                listening.until(Ended)
        time.sleep(5 * pass_seconds)
        for number in range(24):
            time.sleep(0.43 * pass_seconds)
            receiving = request_of(prompt_of(9, number), f"new{number}", purpose=Purpose.RECEIVE)
            asked = time.perf_counter()
            engine.submit(receiving, lambda _event: answers.put(time.perf_counter()))
            waits.append(answers.get(timeout=TIMEOUT_SECONDS) - asked)
        so_far = [listening.next() for _ in range(listening.events.qsize())]
        assert not any(isinstance(event, TokenReady) for event in so_far), "the prompt was through before all had come"
    finally:
        engine.close()

    assert median(waits) < 0.05 * pass_seconds
    assert sorted(waits)[-3] < 0.1 * pass_seconds, "the next pass is at the device, but this one is not over"


def test_positions_of_the_pass_in_flight_are_not_computed_yet() -> None:
    """Launched is not computed: until a prompt's last pass is over, the load tells of it, and what is left is right."""
    pass_seconds = 0.2
    runner = MockRunner(INFO, PRESETS["h200"], num_blocks=64, block_tokens=4, fixed_step_seconds=pass_seconds)
    engine = Engine(runner, SchedulerLimits(max_step_tokens=8), post=deliver)
    listening, left = Listening(), list[tuple[float, int]]()
    engine.start()
    try:
        params = replace(GREEDY, max_tokens=1)
        engine.submit(request_of(prompt_of(40), params=params), listening.events.put)
        while not any(isinstance(event, TokenReady) for event in listening.seen):
            left.append((time.perf_counter(), engine.load().num_pending_prompt_tokens))
            time.sleep(pass_seconds / 50)
            listening.seen += [listening.events.get() for _ in range(listening.events.qsize())]
        end = time.perf_counter()
    finally:
        engine.close()

    told = [(seconds, num_tokens) for seconds, num_tokens in left if num_tokens]
    assert end - told[-1][0] < 0.5 * pass_seconds
    assert told[-1][1] == 8
    too_early = [end - seconds > (num_tokens / 8 + 0.5) * pass_seconds for seconds, num_tokens in told]
    assert sum(too_early) < 0.3 * len(told), "passes in flight count as computed"


def test_what_is_behind_the_pass_at_the_device_is_not_computed_yet_either() -> None:
    """Commands that are executed while one pass ends and the next one waits may have the load told."""
    pipeline, _steps = _waiting_for_the_first_of_two()

    assert list(pipeline.prompts_in_flight().values()) == [4 + 8]
    assert pipeline.seconds_left == pytest.approx(0.25 + 0.5)
    assert pipeline._awaited_seconds() == pytest.approx(0.95 * 0.5 - 0.25)


@pytest.mark.parametrize(("look_seconds", "share"), [(math.inf, 0.5), (1e-3, 1.0)])
def test_a_pass_that_was_over_at_the_look_has_the_next_one_looked_at_sooner(look_seconds: float, share: float) -> None:
    """Unless its device tells when it is over."""
    pipeline, (first, second) = _waiting_for_the_first_of_two()
    pipeline._runner.look_seconds = look_seconds
    pipeline._free_since = 9.75  # it takes as long as expected
    pipeline._settle(Pass(first, None, TokenChoice.GREEDY))

    assert pipeline._scheduler.expected_seconds(second, at_least=True) == pytest.approx(share * 0.5)
    assert pipeline._scheduler.expected_seconds(second) == pytest.approx(0.5)
    pipeline._free_since, pipeline._awaited = 10.2, Pass(second, None, TokenChoice.GREEDY)
    assert pipeline._awaited_seconds() == pytest.approx(0.95 * share * 0.5 - 0.05), "senders wait for what takes in"


def _waiting_for_the_first_of_two() -> tuple[Pipeline, list[Step]]:
    """Return a pipeline that waits for a pass of half a second, a half of which is over, and its two steps."""
    stepper = Stepper(max_step_tokens=8)
    stepper.add(request_of(prompt_of(40)))
    steps = [stepper.scheduler.schedule() for _ in range(2)]
    for step in steps:
        stepper.scheduler.note_pass(step, 0.5)
    pipeline = Pipeline(
        stepper.runner,
        stepper.scheduler,
        RequestRegistry(stepper.scheduler, lambda: 10.25),
        lambda: 10.25,
        deliver=lambda: None,
        await_command=lambda _: False,
    )
    pipeline._awaited, pipeline._in_flight = [Pass(step, None, TokenChoice.GREEDY) for step in steps]
    pipeline._free_since, pipeline.pass_seconds = 10.0, 0.5
    return pipeline, steps


@pytest.mark.parametrize("is_known", [True, False])
def test_a_step_behind_prompts_is_left_alone_once_such_steps_are_known(is_known: bool) -> None:
    """Who comes while it is computed joins the next pass: planned at once, that would be without it."""
    stepper, now = Stepper(), [10.0]
    stepper.add(request_of(prompt_of(4)))
    for _ in range(3):
        step = stepper.step()
        assert step is not None
        if is_known or not step.is_decode:
            stepper.scheduler.note_pass(step, 0.5)
    assert step.is_decode
    step.num_collected = 0
    pipeline = Pipeline(
        stepper.runner,
        stepper.scheduler,
        RequestRegistry(stepper.scheduler, lambda: now[0]),
        lambda: now[0],
        deliver=lambda: None,
        await_command=lambda _: False,
    )
    pipeline._in_flight, pipeline._free_since = Pass(step, None, TokenChoice.GREEDY), 10.0
    pipeline._busy_seconds, pipeline.pass_seconds = 0.0, 0.5

    assert pipeline.rest_seconds == pytest.approx(0.8 * 0.5 if is_known else 0.0, abs=0.05)


class TimedDevice:
    """A mock runner before a device of its own time, in which a step takes 1 second."""

    def __init__(self, stepper: Stepper) -> None:
        self.now, self.free_at, self.left = 100.0, 0.0, list[float]()
        self._launch = stepper.runner.launch
        stepper.runner.launch = self.launch  # type: ignore[method-assign]
        stepper.runner.is_over = lambda _: self.now >= self.free_at  # type: ignore[method-assign]

    def launch(self, spans: Sequence[Span], *, num_steps: int = 1, **options: Any) -> Launched:
        """Begin a pass behind those before it."""
        launched = self._launch(spans, num_steps=num_steps, **options)
        assert isinstance(launched, MockPass)
        self.left.append(self.free_at - self.now)
        begin = max(self.now, self.free_at)
        ends = [begin + step + 1.0 for step in range(num_steps)]
        self.free_at = ends[-1]
        timed = MockPass(launched.chosen, ends, 0, self.wait_until, lambda _, num: num)
        timed.logits = launched.logits  # type: ignore[method-assign]
        return timed

    def wait_until(self, end: float) -> None:
        """Pass the time until a step is over."""
        self.now = max(self.now, end)

    def rest(self, seconds: float) -> bool:
        """Pass some time in which no command comes."""
        self.now += seconds
        return False


@pytest.mark.parametrize("planning", [0.05, 0.4, 0.9, 1.5, 3.2])
def test_the_device_does_not_wait_while_the_next_launch_is_planned(planning: float) -> None:
    """However many steps that takes; nor is it planned much earlier, for who comes meanwhile would not be in it."""
    stepper = Stepper(num_blocks=64)
    device = TimedDevice(stepper)
    registry = RequestRegistry(stepper.scheduler, lambda: device.now)
    pipeline = Pipeline(
        stepper.runner,
        stepper.scheduler,
        registry,
        lambda: device.now,
        deliver=lambda: None,
        await_command=device.rest,
    )
    params = replace(GREEDY, max_tokens=90)
    sequences = [stepper.add(request_of(prompt_of(4, seed), f"r{seed}", params)) for seed in range(2)]
    for sequence in sequences:
        registry.add(sequence, lambda _: None)
    for _ in range(12):
        seconds = pipeline.rest_seconds
        device.rest(seconds)
        pipeline.note_rest(seconds)
        device.now += planning
        pipeline.note_planning(planning)
        pipeline.run(stepper.scheduler.schedule())

    assert min(device.left[5:]) >= 0.0, device.left
    assert max(device.left[5:]) < 1.0, device.left
    for seed, sequence in enumerate(sequences):
        told = sequence.token_ids[4:]
        assert len(told) > 16
        assert told == expected_tokens(prompt_of(4, seed), len(told))


def test_a_device_that_is_over_sooner_than_expected_is_not_left_alone() -> None:
    """What a prompt takes is told by those before it, which may have been of another kind."""
    stepper = Stepper(max_step_tokens=64)
    device = TimedDevice(stepper)
    for length in (2, 40):
        stepper.add(request_of(prompt_of(length), f"r{length}"))
        step = stepper.scheduler.schedule()
        stepper.scheduler.note_pass(step, 5.0)
    pipeline = Pipeline(
        stepper.runner,
        stepper.scheduler,
        RequestRegistry(stepper.scheduler, lambda: device.now),
        lambda: device.now,
        deliver=lambda: None,
        await_command=device.rest,
    )
    pipeline._in_flight = Pass(step, device.launch(step.spans), TokenChoice.GREEDY)
    pipeline._free_since, pipeline._busy_seconds, pipeline.pass_seconds = device.now, 0.0, 5.0

    assert pipeline.rest_seconds > 0.0
    device.now = device.free_at
    assert pipeline.rest_seconds == 0.0
