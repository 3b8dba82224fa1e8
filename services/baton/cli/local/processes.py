"""The running processes of `baton up`: all start, or all stop and the first to die is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from baton.agent.child import STOP_GRACE_SECONDS, ChildSpec, OnLine, describe_exit
from baton.agent.supervisor import Supervisor
from baton.errors import BatonError

MISCONFIGURED = 2
"""Exit status of a process that cannot start with its settings; it would not with them the next time."""


class ChildDiedError(BatonError):
    """A process ended that should not have."""

    reason = "PROCESS_DIED"

    def __init__(self, name: str, status: int, last_lines: Sequence[str]) -> None:
        super().__init__(f"{name} ended unexpectedly with {describe_exit(status)}")
        self.name, self.status = name, status
        self.last_lines = tuple(last_lines)


class Processes:
    """Runs children side by side: until `mark_started` all live or all stop, afterwards who dies is started again.

    Use: construct, await `run` once; cancelling it stops them all. Invariant: when `run` has returned or raised,
    none is left.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        on_line: OnLine,
        *,
        on_death: Callable[[ChildDiedError], None] = lambda _death: None,
        grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        self._on_death = on_death
        self._are_started = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._supervisors = {
            spec.name: Supervisor(spec, on_line, grace_seconds=grace_seconds, gives_up=self._gives_up) for spec in specs
        }

    def mark_started(self) -> None:
        """Take note that all have started: who dies from now on is started again."""
        self._are_started = True

    def process_id(self, name: str) -> int:
        """Return the process id of a child, 0 if it does not run."""
        return self._supervisors[name].process_id

    def kill(self) -> None:
        """End all children at once; for a user who does not want to wait for their grace."""
        for supervisor in self._supervisors.values():
            supervisor.kill()

    async def stop(self, name: str) -> None:
        """Stop a child before the others, for good."""
        if task := self._tasks.get(name):
            task.cancel()
            await asyncio.wait({task})

    async def run(self) -> None:
        """Run children until cancelled; raise ChildDiedError, the others stopped, if one ends for good."""
        try:
            async with asyncio.TaskGroup() as group:
                for name, supervisor in self._supervisors.items():
                    self._tasks[name] = group.create_task(_run(supervisor))
        except* ChildDiedError as deaths:
            raise deaths.exceptions[0] from None

    def _gives_up(self, supervisor: Supervisor, status: int) -> bool:
        would_end_alike = status == MISCONFIGURED and not supervisor.num_restarts
        if self._are_started and not would_end_alike:
            self._on_death(ChildDiedError(supervisor.spec.name, status, supervisor.last_lines))
            return False
        return True


async def _run(supervisor: Supervisor) -> None:
    status = await supervisor.run()
    raise ChildDiedError(supervisor.spec.name, status, supervisor.last_lines)
