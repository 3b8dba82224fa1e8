"""Watches the health of a supervised worker: says when it serves, and has it started again when it no longer does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.agent.supervisor import SupervisedState, Supervisor
from baton.rpc.channel import open_channel

Check = Callable[[], Awaitable[bool]]
"""Asks a worker whether it serves; never raises."""


class HealthWatch:
    """Checks one worker for as long as `run` does.

    A process that has not served yet gets `start_timeout_seconds`; one that has, `num_failed_checks` failures in a row.
    Time that the machine sleeps does not count, and after it both begin anew (`forgive`).
    """

    def __init__(
        self,
        supervisor: Supervisor,
        check: Check,
        *,
        interval_seconds: float,
        num_failed_checks: int,
        start_timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._supervisor, self._check = supervisor, check
        self._interval_seconds, self._num_failed_checks = interval_seconds, num_failed_checks
        self._start_timeout_seconds, self._clock = start_timeout_seconds, clock
        self._num_failures = 0
        self._forgiven_seconds = 0.0

    def forgive(self) -> None:
        """Begin anew with what has failed so far: connections of a machine that has just woken need a moment."""
        self._num_failures = 0
        self._forgiven_seconds = self._clock()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await asyncio.sleep(self._interval_seconds)
            await self.look()

    async def look(self) -> None:
        """Check once and act on the answer."""
        if self._supervisor.process_id == 0:
            self._num_failures = 0
        elif await self._check():
            self._num_failures = 0
            self._supervisor.mark_serving()
        elif self._supervisor.state is SupervisedState.SERVING:
            self._num_failures += 1
            if self._num_failures >= self._num_failed_checks:
                self._supervisor.restart_child(f"unhealthy_checks={self._num_failures}")
        elif self._clock() - max(self._supervisor.begun_seconds, self._forgiven_seconds) > self._start_timeout_seconds:
            self._supervisor.restart_child(f"not_healthy_within_seconds={self._start_timeout_seconds:.0f}")


async def is_serving(address: str, timeout_seconds: float) -> bool:
    """Return whether the gRPC server at host:port says within the timeout that it serves."""
    async with open_channel(address) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=timeout_seconds
            )
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
