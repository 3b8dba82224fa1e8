"""Servers that benchmarks start."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START_SECONDS = 180.0
"""Time that a server has until it answers."""
_STOP_SECONDS = 60.0
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.2
_LOG_CHARACTERS = 3000


@contextmanager
def running_server(
    command: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server that writes to a file; end it and all that it has started.

    SIGINT asks it to end, which every server here takes; what is left after a minute is killed. It gets the signal too
    where this process, or the thread that calls, ends without coming to the end of the context (Linux).
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_served(process: subprocess.Popen[bytes], url: str, log: Path, name: str) -> None:
    """Wait until a server answers a GET with success.

    Raises:
        RuntimeError: If it ends before; the message has the end of its log.
        TimeoutError: If it does not in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with status {process.returncode}\n{_tail(log)}")
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                answer.read()
                return
        except OSError:
            time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{name} did not serve within {START_SECONDS:g} seconds\n{_tail(log)}")


def free_port(offset: int = 0) -> int:
    """Return a port of 127.0.0.1 that nobody listens on, nor, given an offset, on the one that much above it."""
    while True:
        with socket.socket() as listener, socket.socket() as other:
            listener.bind(("127.0.0.1", 0))
            port = int(listener.getsockname()[1])
            try:
                other.bind(("127.0.0.1", port + offset if offset else 0))
            except (OSError, OverflowError):
                continue
            return port


def _end_with_parent() -> None:
    """Have the kernel interrupt this process when its parent is gone; runs between fork and exec."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT))


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]
