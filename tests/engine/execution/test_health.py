"""When an engine takes its device for lost."""

from __future__ import annotations

import queue

import pytest

from baton.engine.engine import Engine
from baton.engine.events import Failed
from baton.engine.execution.health import MAX_FAILED_PASSES, PassHealth
from baton.engine.limits import SchedulerLimits
from baton.engine.runners.mock import MockRunner
from baton.kv.pool import BlockPool
from engine.faulty_runners import FaultyRunner, LostRunner, NeverFiniteRunner, SpoilingRunner, still
from engine.rig import TIMEOUT_SECONDS, Rig, expected_tokens, request_of


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


def death_of(runner: MockRunner) -> BaseException:
    """Return what an engine dies of when it has had enough requests."""
    fatal: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
    limits = SchedulerLimits(max_batch_size=1, max_step_tokens=16)
    engine = Engine(runner, limits, post=lambda _deliveries: None, on_fatal=fatal.put, clock=lambda: 1.0)
    for number in range(MAX_FAILED_PASSES):
        engine.submit(request_of([5, 1, 9], f"bad-{number}"), lambda _event: None)
    engine.start()
    return fatal.get(timeout=TIMEOUT_SECONDS)
