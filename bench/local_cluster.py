"""Baton itself, started through its command line with one decode node, for benchmarks that compare its options."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_TIMEOUT_SECONDS = 180.0
STOP_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.2
_LOG_CHARACTERS = 3000


@contextmanager
def running_node(model: Path, settings: Mapping[str, str | int | bool]) -> Iterator[str]:
    """Run a gateway, a router, a cache index and a decode node; yield the URL of the gateway.

    Args:
        model: Folder of the model.
        settings: Of the decode node, as a `[[node]]` table of `baton up --nodes` has them.

    Raises:
        RuntimeError: If it ends before it is ready; the message has the end of its log.
        TimeoutError: If it is not ready in time.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
        nodes = folder / "nodes.toml"
        nodes.write_text(_table(settings), encoding="utf-8")
        http_port, grpc_port = _free_port(), _free_port()
        command = [sys.executable, "-m", "baton.cli", "up", "--model", str(model), "--model-name", "model"]
        command += ["--nodes", str(nodes), "--http-port", str(http_port), "--grpc-port", str(grpc_port)]
        log_path = folder / "log"
        log = stack.enter_context(log_path.open("wb"))
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "GOMP_SPINCOUNT": "0"})
        stack.callback(_stop, process)
        url = f"http://127.0.0.1:{http_port}"
        _wait_until_ready(process, url, log_path)
        yield url


def _table(settings: Mapping[str, str | int | bool]) -> str:
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in settings.items()
    ]
    return "\n".join(["[[node]]", 'role = "decode"', *lines, ""])


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log_path: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"baton up ended with status {process.returncode}\n{_tail(log_path)}")
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"baton up was not ready within {START_TIMEOUT_SECONDS} seconds\n{_tail(log_path)}")


def _tail(log_path: Path) -> str:
    return log_path.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
