"""Keeps one child alive: starts it, starts it again after a growing pause when it ends."""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from baton.agent.child import STOP_GRACE_SECONDS, Child, ChildSpec, OnLine, describe_exit

log = logging.getLogger(__name__)


class SupervisedState(enum.Enum):
    """Where a supervised child stands."""

    STARTING = "starting"
    SERVING = "serving"
    BACKING_OFF = "backing_off"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double with every failure in a row."""

    first_seconds: float = 0.5
    """Pause after the first failure, above 0."""
    longest_seconds: float = 30.0
    healthy_seconds: float = 60.0
    """A run at least this long clears the count of failures."""

    def pause_seconds(self, num_failures: int) -> float:
        """Return the pause after the n-th failure in a row, n from 1."""
        return float(min(self.longest_seconds, self.first_seconds * 2 ** min(num_failures - 1, 32)))


class Supervisor:
    """Runs one child again and again.

    Use: construct, await `run` once; cancelling it stops the child for good. `state` is STARTING or SERVING exactly
    while a process exists; whoever checks health calls `mark_serving`.
    """

    def __init__(
        self,
        spec: ChildSpec,
        on_line: OnLine,
        *,
        grace_seconds: float = STOP_GRACE_SECONDS,
        gives_up: Callable[[Supervisor, int], bool] = lambda _supervisor, _status: False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing runs yet.

        `grace_seconds` is the time that it has to end when asked to; `gives_up` says whether, after a run that ended
        with a status, none is to follow.
        """
        self.spec = spec
        self.state = SupervisedState.STARTING
        self.num_restarts = 0
        self.last_exit_status: int | None = None
        self.started_at_seconds = 0.0
        """Unix time of the last start, 0 before the first."""
        self.begun_seconds = 0.0
        """The same by the clock."""
        self._on_line = on_line
        self._backoff = Backoff()
        self._grace_seconds, self._gives_up = grace_seconds, gives_up
        self._sleep, self._clock = sleep, clock
        self._child: Child | None = None

    @property
    def process_id(self) -> int:
        """Process id of the child, 0 if none runs."""
        return self._child.process_id if self._child else 0

    @property
    def last_lines(self) -> Sequence[str]:
        """The child's last words."""
        return self._child.last_lines if self._child else ()

    async def run(self) -> int:
        """Keep the child alive until cancelled; return the status of a run that none follows."""
        num_failures = 0
        try:
            while True:
                began = self.begun_seconds = self._clock()
                self.state = SupervisedState.STARTING
                self.started_at_seconds = time.time()
                self._child = Child(self.spec, self._on_line, grace_seconds=self._grace_seconds)
                status = await self._child.run()
                self.last_exit_status = status
                log.warning("child_ended name=%s how=%s", self.spec.name, describe_exit(status).replace(" ", "_"))
                if self._gives_up(self, status):
                    return status
                num_failures = 1 if self._clock() - began >= self._backoff.healthy_seconds else num_failures + 1
                await self._pause(num_failures)
        finally:
            self.state = SupervisedState.STOPPED

    def mark_serving(self) -> None:
        """Say that the running child has answered a health check."""
        if self.state is SupervisedState.STARTING:
            self.state = SupervisedState.SERVING
            log.info("child_serving name=%s pid=%d", self.spec.name, self.process_id)

    def restart_child(self, reason: str) -> None:
        """Stop the running child, for `run` to start another; for a child that lives but does not serve."""
        log.warning("child_stuck name=%s pid=%d reason=%s", self.spec.name, self.process_id, reason)
        self.kill()

    def kill(self) -> None:
        """End the running child at once."""
        if self._child is not None:
            self._child.kill()

    async def _pause(self, num_failures: int) -> None:
        self.state = SupervisedState.BACKING_OFF
        self.num_restarts += 1
        seconds = self._backoff.pause_seconds(num_failures)
        log.info("child_restarts name=%s in_seconds=%.1f restart=%d", self.spec.name, seconds, self.num_restarts)
        await self._sleep(seconds)
