"""Which agent serves a state folder: one at most, whose process others find."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.errors import UnavailableError

_NAME = "agent.pid"


@contextmanager
def running_agent(folder: Path) -> Iterator[None]:
    """Note this process as the agent of a state folder as long as the context lasts, or raise UnavailableError."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "`baton leave` ends it, and --state-dir gives another one a folder of its own"
            raise UnavailableError(f"an agent of {folder} runs already: {remedy}", reason="MACHINE_IN_USE") from None
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode("ascii"))
        yield
    finally:
        os.close(descriptor)


def agent_process(folder: Path) -> int:
    """Return the process id of the agent that serves a state folder, 0 if none does."""
    try:
        descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.read(descriptor, 32) or b"0")
    finally:
        os.close(descriptor)
    return 0
