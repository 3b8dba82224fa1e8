"""A child process: started, its lines handed on, stopped by SIGTERM, then SIGKILL; ended when its parent is killed."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

PARENT_VARIABLE = "BATON_PARENT_PID"
"""Environment variable in which a parent that wants this gives its own process id."""

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 1.0


def parent_environment() -> Mapping[str, str]:
    """Return the variables that tie a child to this process."""
    return {PARENT_VARIABLE: str(os.getpid())}


def die_with_parent() -> None:
    """Make this process end when its parent does, if the parent asked for that.

    Linux does so by itself (PR_SET_PDEATHSIG); elsewhere a thread compares the parent's id once a second.
    """
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent.isdigit():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(int(parent),), name="parent-watch", daemon=True).start()
    if os.getppid() != int(parent):
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


STOP_GRACE_SECONDS = 10.0
"""From SIGTERM to SIGKILL."""
NUM_KEPT_LINES = 20
"""Last lines of a child that are kept to explain its end."""

_MAX_LINE_BYTES = 1 << 20
_DRAIN_SECONDS = 1.0

OnLine = Callable[[str, str], None]
"""Takes the name of a child and one line that it wrote, without the line feed."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What to run."""

    name: str
    """Names the child in logs: a role or a node id."""
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of this process."""


class Child:
    """One run of a program. Use: construct, await `run` once; cancelling `run` stops the program.

    Invariant: when `run` has returned or raised, the process is gone.
    """

    def __init__(self, spec: ChildSpec, on_line: OnLine, *, grace_seconds: float = STOP_GRACE_SECONDS) -> None:
        self.spec = spec
        self.last_lines: deque[str] = deque(maxlen=NUM_KEPT_LINES)
        self._on_line, self._grace_seconds = on_line, grace_seconds
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process_id(self) -> int:
        """Process id, 0 before the start and after the end."""
        is_running = self._process is not None and self._process.returncode is None
        return self._process.pid if is_running and self._process else 0

    async def run(self) -> int:
        """Run the program to its end; return its status, negative for a signal. Raises OSError if it cannot start."""
        # Linux shares CPUs out by session: in one of its own a gateway waits for busy workers. uvloop has no groups.
        has_groups = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
        process = await asyncio.create_subprocess_exec(
            *self.spec.arguments,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.environment, **parent_environment()},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=_MAX_LINE_BYTES,
            **({"process_group": 0} if has_groups else {"start_new_session": True}),
        )
        self._process = process
        pump = asyncio.ensure_future(self._pump(process))
        try:
            return await process.wait()
        finally:
            await self._stop(process)
            await asyncio.wait((pump,), timeout=_DRAIN_SECONDS)
            pump.cancel()

    def kill(self) -> None:
        """End the program at once; `run` then returns."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self._grace_seconds)
        except BaseException as error:
            self.kill()
            await process.wait()
            if not isinstance(error, TimeoutError):
                raise

    async def _pump(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                continue  # longer than _MAX_LINE_BYTES; the reader dropped it
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            self.last_lines.append(text)
            try:
                self._on_line(self.spec.name, text)
            except OSError:
                continue  # nobody reads any more; unread, the pipe would fill and the child stand still


def describe_exit(status: int) -> str:
    """Return an exit status in words: "exit status 3" or "signal SIGKILL"."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
