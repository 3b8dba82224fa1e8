"""Processes that benchmarks start: children that answer by lines of JSON, and servers that run for a while."""

from __future__ import annotations

import ctypes
import json
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
from typing import Any

HOME = Path(__file__).resolve().parent.parent
"""Folder of the package `bench`."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
"""Environment of an engine that shall have one thread, and that none of its libraries waits in a loop."""
START_SECONDS = 180.0
"""Time that a server has until it answers."""
_STOP_SECONDS = 60.0
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.2
_LOG_CHARACTERS = 3000


class ChildFailedError(RuntimeError):
    """A child process has ended, or did not do what it was asked."""


class Child:
    """A child process that is told lines and answers lines of JSON; what else its libraries print is passed over."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def tell(self, line: str) -> None:
        """Write a line to the child's standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the child's next line of JSON.

        Raises:
            ChildFailedError: If it has ended.
        """
        for answer in self.answers():
            return answer
        raise ChildFailedError(f"{_words(self._process.args)} ended with status {self._process.wait()}")

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield the child's lines of JSON until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                yield json.loads(line)

    def finish(self) -> None:
        """Wait until the child ends by itself.

        Raises:
            ChildFailedError: If it ends with a status other than 0.
        """
        status = self._process.wait()
        if status:
            raise ChildFailedError(f"{_words(self._process.args)} ended with status {status}")


def say(values: Mapping[str, object]) -> None:
    """Tell the process that started this one something, as a line of JSON."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


@contextmanager
def running_child(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, is_quiet: bool = False
) -> Iterator[Child]:
    """Run a child that can import `bench`; kill it at the end.

    Args:
        command: What to run.
        environment: Variables beside those of this process.
        is_quiet: Whether what it writes to its standard error is dropped.
    """
    paths = os.pathsep.join(filter(None, (str(HOME), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if is_quiet else None,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
    ) as process:
        try:
            yield Child(process)
        finally:
            process.kill()


def answers_of(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """Run a child to its end; yield its lines of JSON as they come.

    Raises:
        ChildFailedError: If it ends with a status other than 0; its own words are on the terminal.
    """
    with running_child(command, environment) as child:
        yield from child.answers()
        child.finish()


@contextmanager
def running_server(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, *, folder: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server that writes to a file; end it and all that it has started.

    SIGINT asks it to end, which every server here takes; what is left after a minute is killed. It gets the signal too
    where this process, or the thread that calls, ends without coming to the end of the context (Linux).

    Args:
        command: What to run.
        log: File of its output.
        environment: Variables beside those of this process.
        folder: Where it runs, None: here.
    """
    environment = {**os.environ, **(environment or {})}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
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


def wait_until_served(
    process: subprocess.Popen[bytes], request: str | urllib.request.Request, log: Path, name: str
) -> None:
    """Wait until a server answers a request with success.

    Raises:
        RuntimeError: If it ends before; the message has the end of its log.
        TimeoutError: If it does not in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with status {process.returncode}\n{_tail(log)}")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()
                return
        except OSError:
            time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"{name} did not serve within {START_SECONDS:g} seconds\n{_tail(log)}")


def chat_request(url: str, model: str) -> urllib.request.Request:
    """Return a request for one token of a chat, which a server answers once it has its model."""
    body = {"model": model, "messages": [{"role": "user", "content": "able"}], "max_tokens": 1}
    headers = {"content-type": "application/json"}
    return urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)


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


def _words(command: Any) -> str:
    return command if isinstance(command, str) else " ".join(map(str, command))
