"""When an engine takes its device for lost, or a pass for hung."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from baton.engine.engine import Engine
from baton.engine.events import Failed
from baton.engine.execution.health import LEAST_HUNG_SECONDS, MAX_FAILED_PASSES, PassHealth, PassTimer
from baton.engine.runners.base import Span
from baton.engine.runners.mock import MockRunner
from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.step import Step
from baton.kv.pool import BlockPool
from engine.faulty_runners import FaultyRunner, LostRunner, NeverFiniteRunner, SpoilingRunner, still
from engine.rig import TIMEOUT_SECONDS, Rig, WaitingMockRunner, expected_tokens, request_of


def test_an_engine_whose_passes_all_fail_dies() -> None:
    """A node that fails fast looks idle: it must end, and be started again, rather than draw every request."""
    assert f"{MAX_FAILED_PASSES} passes failed in a row" in str(death_of(still(LostRunner)))


def test_an_engine_that_never_gives_finite_logits_dies() -> None:
    """It is as lost as one whose passes raise."""
    assert f"{MAX_FAILED_PASSES} passes failed in a row" in str(death_of(still(NeverFiniteRunner)))


def test_requests_that_fail_every_pass_end_no_engine() -> None:
    """Neither those whose passes raise nor those whose logits overflow: others are served after any number of them."""
    for runner in (still(FaultyRunner), still(SpoilingRunner)):
        with Rig(runner) as rig:
            for number in range(2 * MAX_FAILED_PASSES):
                poison = rig.submit(request_of([5, 1, 9], f"poison-{number}"))
                assert isinstance(poison.until(Failed), Failed)

            assert rig.generate(request_of([5, 3, 2], "sound")) == expected_tokens([5, 3, 2], 8)
            rig.settle()
        assert rig.fatal == []


def test_a_device_is_not_examined_before_there_is_a_block() -> None:
    """Requests that receive may hold all of them; what was suspected is examined later."""
    pool = BlockPool(1, 4)
    health = PassHealth(still(LostRunner), pool)
    held = pool.allocate(1)
    for _ in range(MAX_FAILED_PASSES):
        health.note(None)
    pool.release(held)

    with pytest.raises(RuntimeError, match="taken for lost"):
        health.note(None)
    pool.check_integrity([])


@pytest.mark.parametrize(("longest_seconds", "hung_after"), [(0.1, LEAST_HUNG_SECONDS), (12.0, 12.0)])
def test_a_pass_hangs_when_it_takes_longer_than_any_that_ends(longest_seconds: float, hung_after: float) -> None:
    """And never before a machine that only paused would be back; one that is over does not."""
    now = [0.0]
    timer = PassTimer(lambda _step: longest_seconds, lambda: now[0])
    assert not timer.is_hung()
    timer.begin(Step(), 5.0)

    now[0] = 5.0 + hung_after
    assert not timer.is_hung()
    now[0] += 0.01
    assert timer.is_hung()
    timer.end()
    assert not timer.is_hung()


def test_an_engine_knows_a_pass_that_hangs_until_it_ends_or_fails() -> None:
    """By what its passes took before: here the one after them stands still until the test has seen it."""
    ticks, now = itertools.count(), [0.0]
    runner = still(HangingRunner)
    assert isinstance(runner, HangingRunner)
    runner.has_begun, runner.let_go = threading.Event(), threading.Event()
    runner.let_go.set()
    with Rig(runner, clock=lambda: now[0] + 1e-3 * next(ticks)) as rig:
        for number in range(4):
            rig.generate(request_of([5, 3, 2], f"before-{number}"))
        runner.has_begun.clear()
        runner.let_go.clear()
        hanging = rig.submit(request_of([5, 3, 2], "hanging"))
        assert runner.has_begun.wait(TIMEOUT_SECONDS)
        assert not rig.engine.is_pass_hung()
        now[0] += LEAST_HUNG_SECONDS + 1.0

        assert rig.engine.is_pass_hung()
        runner.let_go.set()
        hanging.result()
        assert not rig.engine.is_pass_hung()


class HangingRunner(WaitingMockRunner):
    """A runner whose passes last until they are let go."""

    has_begun: threading.Event
    let_go: threading.Event

    def forward(self, spans: Sequence[Span]) -> Any:
        """Compute once it is let go."""
        self.has_begun.set()
        assert self.let_go.wait(TIMEOUT_SECONDS)
        return super().forward(spans)


def death_of(runner: MockRunner) -> BaseException:
    """Return what an engine dies of when it has had enough requests."""
    fatal: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    limits = SchedulerLimits(max_batch_size=1, max_step_tokens=16)
    engine = Engine(runner, limits, post=lambda _deliveries: None, on_fatal=fatal.put, clock=lambda: 1.0)
    for number in range(MAX_FAILED_PASSES):
        engine.submit(request_of([5, 1, 9], f"bad-{number}"), lambda _event: None)
    engine.start()
    return fatal.get(timeout=TIMEOUT_SECONDS)
