"""`baton serve gateway --processes N`, as a user starts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from baton.gateway.settings import GatewaySettings
from system.plan import free_ports
from text.tokenizer_folders import byte_level, save


class Running(NamedTuple):
    """The parent, and where its gateways listen."""

    parent: subprocess.Popen[bytes]
    http_port: int
    metrics_port: int


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """Run two gateways without a router: they serve what needs none."""
    ports = free_ports(["http", "grpc", "metrics"])
    flags = ["--http-port", ports["http"], "--grpc-port", ports["grpc"], "--metrics-port", ports["metrics"]]
    model = save(byte_level(), tmp_path / "tiny")
    command = [sys.executable, "-m", "baton.cli", "serve", "gateway", "--processes", "2", "--model-dir", str(model)]
    parent = subprocess.Popen([*command, *map(str, flags), "--drain-seconds", "1"])
    try:
        yield Running(parent, ports["http"], ports["metrics"])
    finally:
        parent.kill()
        parent.wait()


def _status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def _wait(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 200
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_share_a_port_come_back_and_stop_together(running: Running) -> None:
    """Each has its own metrics; the shared port shows none."""
    _wait(lambda: all(_status(running.metrics_port + index, "/metrics") == 200 for index in range(2)))
    first, second = _children(running.parent.pid)

    _wait(lambda: _status(running.http_port, "/health") == 200)
    _wait(lambda: _status(running.http_port, "/metrics") == 404)
    os.kill(first, signal.SIGKILL)
    _wait(lambda: _status(running.metrics_port, "/metrics") == 200 and first not in _children(running.parent.pid))
    assert second in _children(running.parent.pid)
    running.parent.terminate()
    assert running.parent.wait(60) == 0
    _wait(lambda: not Path(f"/proc/{second}").exists())


def test_processes_that_cannot_start_end_with_the_cause(tmp_path: Path) -> None:
    """As one gateway would, instead of being started again for ever."""
    ports = free_ports(["http", "grpc", "metrics"])
    flags = ["--http-port", ports["http"], "--grpc-port", ports["grpc"], "--metrics-port", ports["metrics"]]
    command = [sys.executable, "-m", "baton.cli", "serve", "gateway", "--processes", "2"]

    ended = subprocess.run(
        [*command, "--model-dir", str(tmp_path), *map(str, flags)], capture_output=True, text=True, timeout=300
    )

    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f"error: model {tmp_path}: no tokenizer")
    assert re.search("gateway-[01] ", ended.stdout)  # the first that fails ends the other


@pytest.mark.parametrize("field", ["http_port", "grpc_port", "metrics_port"])
def test_several_processes_need_ports_that_all_know(tmp_path: Path, field: str) -> None:
    """Any free one would be another for each."""
    ports = {"http_port": 1, "grpc_port": 2, "metrics_port": 3, field: 0}

    with pytest.raises(ValueError, match=field):
        GatewaySettings(model_dir=tmp_path, processes=2, **ports)  # type: ignore[arg-type]
