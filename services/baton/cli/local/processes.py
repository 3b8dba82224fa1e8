"""The running processes of `baton up`: all live, or all stop and the first to die is named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from baton.agent.child import STOP_GRACE_SECONDS, Child, ChildSpec, OnLine, describe_exit
from baton.agent.supervisor import Supervisor
from baton.errors import BatonError

MISCONFIGURED = 2
"""Exit status of a process that cannot start with its settings; it would not with them the next time."""


class ChildDiedError(BatonError):
    """A process ended that should not have."""

    reason = "PROCESS_DIED"

    def __init__(self, name: str, status: int, last_lines: Sequence[str]) -> None:
        super().__init__(f"{name} ended unexpectedly with {describe_exit(status)}")
        self.name = name
        self.status = status
        self.last_lines = tuple(last_lines)


class Processes:
    """Runs children side by side.

    Use: construct, await `run` once; cancelling it stops them all. Invariant: when `run` has returned or raised,
    none is left.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        on_line: OnLine,
        *,
        is_restarting: bool = False,
        grace_seconds: float = STOP_GRACE_SECONDS,
    ) -> None:
        self._grace_seconds = grace_seconds
        runners = [self._supervisor(spec, on_line) if is_restarting else self._child(spec, on_line) for spec in specs]
        self._runners: dict[str, Child | Supervisor] = {runner.spec.name: runner for runner in runners}

    def process_id(self, name: str) -> int:
        """Return the process id of a child, 0 if it does not run."""
        return self._runners[name].process_id

    def kill(self) -> None:
        """End all children at once; for a user who does not want to wait for their grace."""
        for runner in self._runners.values():
            runner.kill()

    async def run(self) -> None:
        """Run all children until cancelled, or until one ends.

        Raises:
            ChildDiedError: When a child ends and restarting is off or would not help; the others have been stopped.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for runner in self._runners.values():
                    group.create_task(_run(runner))
        except* ChildDiedError as deaths:
            raise deaths.exceptions[0] from None

    def _child(self, spec: ChildSpec, on_line: OnLine) -> Child:
        return Child(spec, on_line, grace_seconds=self._grace_seconds)

    def _supervisor(self, spec: ChildSpec, on_line: OnLine) -> Supervisor:
        return Supervisor(spec, on_line, grace_seconds=self._grace_seconds, hopeless_status=MISCONFIGURED)


async def _run(runner: Child | Supervisor) -> None:
    status = await runner.run()
    if status is not None:
        raise ChildDiedError(runner.spec.name, status, runner.last_lines)
