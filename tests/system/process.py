"""One `baton serve ROLE` process of a test cluster: started, signalled, started again on the same ports."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from baton.agent.child import parent_environment
from baton.config.settings import flag_of

NUM_SHOWN_LINES = 40
"""Last lines of a log that are shown when a test fails."""
_END_SECONDS = 60.0


class ServedProcess:
    """A process that dies with the test run (PR_SET_PDEATHSIG). Start it on the main thread, which outlives it.

    Args:
        name: Names it in the cluster, e.g. "decode-0".
        role: Its word after `baton serve`.
        settings: Its flags by field name.
        environment: Variables beside those of this process.
        log_file: Where its output goes; restarts append.
    """

    def __init__(
        self, name: str, role: str, settings: Mapping[str, str], environment: Mapping[str, str], log_file: Path
    ) -> None:
        self.name = name
        self.role = role
        self.settings = settings
        self.log_file = log_file
        self.environment = environment
        """Variables beside those of this process, from the next start on."""
        self._process: subprocess.Popen[bytes] | None = None
        self.started_ns = 0
        """Wall clock of the last start, nanoseconds; a node's epoch is later."""

    @property
    def pid(self) -> int:
        """Process id of the last start."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.poll()

    def start(self) -> None:
        """Start it; returns before it serves."""
        flags = [f"{flag_of(key)}={value}" for key, value in self.settings.items()]
        self.started_ns = time.time_ns()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "baton.cli", "serve", self.role, *flags),
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment, **parent_environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        assert self._process is not None, f"{self.name} was never started"
        self._process.send_signal(number)

    def wait(self, timeout_seconds: float = _END_SECONDS) -> int:
        """Return the exit status once it has ended.

        Raises:
            subprocess.TimeoutExpired: If it has not by then.
        """
        assert self._process is not None, f"{self.name} was never started"
        return self._process.wait(timeout_seconds)

    def kill(self) -> None:
        """End it at once, also if it is stopped, and wait until it is gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait(_END_SECONDS)

    def log_tail(self, num_lines: int = NUM_SHOWN_LINES) -> str:
        """Return the last lines of its log."""
        with contextlib.suppress(FileNotFoundError), self.log_file.open(errors="replace") as log:
            return "".join(deque(log, num_lines))
        return ""
