"""Real processes to attack, and what an attack costs them.

`BATON_ATTACK_TREE=CHECKOUT` attacks the processes of another checkout, such as that of an older commit.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from order import RUNS_ALL
from system.process import ServedProcess

TREE = os.environ.get("BATON_ATTACK_TREE", "")
IS_FORMER = bool(TREE) and not Path(TREE, "protos/baton/internal").exists()
"""Whether that commit is of the time when internal calls were in the public package, and workers had one part."""
INTERNAL = "baton.v1" if IS_FORMER else "baton.internal.v1"
"""Package of internal calls there."""
full = pytest.mark.skipif(not RUNS_ALL, reason="attacks a real process: run `make matrix`")
"""Marks a test that `make test` has no time for."""

MIB = 1 << 20
KEY = "the-key"
"""Of a client, at gateways with keys."""
_READY_SECONDS = 120.0
_LOOK_SECONDS = 0.02


class Damage:
    """What an attack did to a process while a `with` lasted: its memory, its time, and how long others waited.

    Args:
        pid: Process id.
        ask: Asks the process for something small, as a user who attacks nobody would.
    """

    def __init__(self, pid: int, ask: Callable[[], None]) -> None:
        self._pid = pid
        self._ask = ask
        self._is_over = threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self.longest_wait_seconds = 0.0
        """Until a small question was answered."""
        self.most_bytes = 0
        """By how much the resident memory grew at most."""
        self.cpu_seconds = 0.0
        """Processor time, user and system."""

    def __enter__(self) -> Damage:
        self._ask()
        self._bytes, self._cpu = self._resident_bytes(), self._used_seconds()
        self._watching.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._watching.join()
        self.cpu_seconds = self._used_seconds() - self._cpu

    def __str__(self) -> str:
        times = f"{self.cpu_seconds:.2f} s of CPU, others waited {self.longest_wait_seconds:.2f} s at most"
        return f"+{self.most_bytes / MIB:.0f} MiB, {times}"

    def _watch(self) -> None:
        while not self._is_over.wait(_LOOK_SECONDS):
            began = time.monotonic()
            with contextlib.suppress(OSError):
                self._ask()
            self.longest_wait_seconds = max(self.longest_wait_seconds, time.monotonic() - began)
            self.most_bytes = max(self.most_bytes, self._resident_bytes() - self._bytes)

    def _resident_bytes(self) -> int:
        text = Path(f"/proc/{self._pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) << 10

    def _used_seconds(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running(role: str, settings: Mapping[str, str], folder: Path, ask: Callable[[], None]) -> Iterator[ServedProcess]:
    """Run a process of Baton for as long as the context lasts; it has answered by then."""
    environment = {"PYTHONPATH": f"{TREE}/services:{TREE}"} if TREE else {}
    process = ServedProcess(role, role, settings, environment, folder / f"{role}.log")
    process.start()
    try:
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                ask()
                break
            except OSError:
                is_hopeless = time.monotonic() > deadline or process.exit_status is not None
                assert not is_hopeless, process.log_tail()
                time.sleep(_LOOK_SECONDS)
        yield process
    finally:
        process.kill()
