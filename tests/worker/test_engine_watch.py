"""Whether a node's engine gets on, and what its health says of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.engine.events import EngineLoad
from baton.engine.runners.base import Span
from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer
from baton.worker.engine_watch import LOST_FACTOR, EngineHealth, EngineWatch, watch_passes
from engine.rig import TIMEOUT_SECONDS, Rig, WaitingMockRunner, mock_runner, prompt_of, request_of

IDLE = EngineLoad(0, 0, 0, 64, 0.0, 0)
BUSY = replace(IDLE, num_running=1)
BOUND_SECONDS = 30.0
SERVICE = "baton.internal.v1.DecodeService"
STATUS = health_pb2.HealthCheckResponse


class StuckRunner(WaitingMockRunner):
    """A runner whose passes last until they are let go."""

    has_begun: threading.Event
    let_go: threading.Event

    def forward(self, spans: Sequence[Span]) -> Any:
        """Compute once it is let go."""
        self.has_begun.set()
        assert self.let_go.wait(TIMEOUT_SECONDS)
        return super().forward(spans)


class Time:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def test_a_runner_that_never_returns_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's thread hangs in a pass: stuck after the bound, lost after ten, and well again when it returns."""
    runner = mock_runner(kind=StuckRunner)
    assert isinstance(runner, StuckRunner)
    runner.has_begun, runner.let_go = threading.Event(), threading.Event()
    time = Time()
    with Rig(runner) as rig:
        watch = EngineWatch(rig.engine.call, rig.engine.load, BOUND_SECONDS, clock=time)
        assert watch.look() is EngineHealth.MOVES
        _until_answered(rig.engine.call)
        request = rig.submit(request_of(prompt_of(8)))
        assert runner.has_begun.wait(TIMEOUT_SECONDS)  # else the thread might still answer what it is asked next
        found = [watch.look()]
        for seconds in (BOUND_SECONDS, 2 * BOUND_SECONDS, LOST_FACTOR * BOUND_SECONDS + 1):
            time.seconds = seconds
            found.append(watch.look())
        runner.let_go.set()
        request.result()
        _until_answered(rig.engine.call)

        assert found == [EngineHealth.MOVES, EngineHealth.MOVES, EngineHealth.STUCK, EngineHealth.LOST]
        assert watch.look() is EngineHealth.MOVES


def test_work_without_passes_is_found() -> None:
    """A thread that answers, and plans nothing though it has work, is stuck too; waiting for work is not."""
    time, loads = Time(), [IDLE]
    watch = EngineWatch(lambda function: function(), lambda: loads[-1], BOUND_SECONDS, clock=time)
    found = []
    for seconds, load in (
        (0, IDLE),
        (100, IDLE),
        (200, BUSY),
        (229, BUSY),
        (231, BUSY),
        (232, replace(BUSY, num_steps=1)),
        (600, replace(BUSY, num_steps=1)),
        (601, IDLE),
    ):
        time.seconds = seconds
        loads.append(load)
        found.append(watch.look())

    moves, stuck, lost = EngineHealth.MOVES, EngineHealth.STUCK, EngineHealth.LOST
    assert found == [moves, moves, moves, moves, stuck, moves, lost, moves]


def test_health_follows() -> None:
    """Stuck: the service does not serve, the process is well. Lost: neither. Then both again, and each is told once."""

    async def scenario() -> list[tuple[int, int]]:
        server = GrpcServer("127.0.0.1:0")
        server.add(SERVICE, lambda _server: None)
        port = await server.start()
        time, seen = Time(), []
        looks: asyncio.Queue[float] = asyncio.Queue()

        async def until_next_look(_seconds: float) -> None:
            time.seconds = await looks.get()

        loads = iter([BUSY, BUSY, BUSY, BUSY, IDLE])
        watch = EngineWatch(lambda function: function(), lambda: next(loads), 30.0, clock=time, sleep=until_next_look)
        told: asyncio.Queue[EngineHealth] = asyncio.Queue()

        async def tell(progress: EngineHealth) -> None:
            server.set_serving(progress is EngineHealth.MOVES, is_alive=progress is not EngineHealth.LOST)
            told.put_nowait(progress)

        running = asyncio.create_task(watch.run(tell))
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            for seconds in (1, 2, 40, 400, 401):
                looks.put_nowait(seconds)
                if seconds >= 40:
                    await asyncio.wait_for(told.get(), TIMEOUT_SECONDS)
                    requests = [health_pb2.HealthCheckRequest(service=name) for name in (SERVICE, "")]
                    seen.append(tuple([(await stub.Check(each, timeout=TIMEOUT_SECONDS)).status for each in requests]))
        running.cancel()
        await server.drain(0.0)
        return seen

    serving, not_serving = STATUS.SERVING, STATUS.NOT_SERVING
    assert asyncio.run(scenario()) == [(not_serving, serving), (not_serving, not_serving), (serving, serving)]


def test_a_pass_hangs_if_two_looks_in_a_row_say_so() -> None:
    """A process that was stopped finds its pass late once; beginning and end of a hang are told once each."""
    looks = iter([False, True, False, True, True, True, False, True])
    told: list[bool] = []

    async def sleep(_seconds: float) -> None:
        if len(told) == 2:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watch_passes(lambda: next(looks), told.append, sleep=sleep))

    assert told == [True, False]
    assert list(looks) == [True]


def _until_answered(call: Callable[[Callable[[], None]], None]) -> None:
    """Return once the engine's thread has carried out what it was asked before."""
    answered = threading.Event()
    call(answered.set)
    assert answered.wait(TIMEOUT_SECONDS)
