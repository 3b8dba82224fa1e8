"""Keeps measuring and serving apart on one machine: several workers may serve at once, nobody measures meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.errors import UnavailableError

_NAME = "machine.lock"


@contextmanager
def machine_used_for(purpose: str, folder: Path) -> Iterator[None]:
    """Hold the machine as long as the context lasts; the kernel gives it back if the process dies.

    Args:
        purpose: "serving", beside others that serve, or "measuring", alone.
        folder: State folder of the machine's agent; made if it is not there.

    Raises:
        UnavailableError: If the machine is used for something that this would disturb, or be disturbed by.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if purpose == "measuring" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            other = "a worker serves" if purpose == "measuring" else "`baton profile` measures"
            raise UnavailableError(f"{other} on this machine: {purpose} has to wait", reason="MACHINE_IN_USE") from None
        yield
    finally:
        os.close(descriptor)
