"""A model on demand beside another one: loaded once by a hundred first requests, and gone with its memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from baton.cli.local.ports import free_ports
from baton.demo import checkpoint_dir
from order import RUNS_ALL

pytestmark = pytest.mark.skipif(not RUNS_ALL, reason="a sample of it is simulated: run `make matrix`")

NUM_FIRST = 100
LIMIT_SECONDS = 300.0
NODES = '[[node]]\nrole = "worker"\nengine = "mock"\nmock_step_seconds = 0.002\n'


class RunningUp:
    """A `baton up` of its own."""

    def __init__(self, folder: Path) -> None:
        (folder / "nodes.toml").write_text(NODES)
        ports = free_ports("127.0.0.1", ("http", "grpc"), preferred={})
        self.url = f"http://127.0.0.1:{ports['http']}"
        self.log = folder / "up.log"
        flags = (f"--nodes={folder}/nodes.toml", f"--models-file={folder}/models.toml", f"--state-dir={folder}", "-v")
        flags += (f"--http-port={ports['http']}", f"--grpc-port={ports['grpc']}")
        with self.log.open("wb") as output:
            command = [sys.executable, "-m", "baton.cli", "up", *flags]
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "COLUMNS": "400"})

    def ask(self, path: str, body: dict[str, object] | None = None) -> tuple[int, Any]:
        """Return status and document of an answer."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def complete(self, model: str) -> int:
        """Return the status of a short completion."""
        return self.ask("/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 4})[0]

    def state_of(self, model: str) -> str:
        """Return where a model stands; empty: the gateway does not know it."""
        rows = {row["id"]: row["state"] for row in self.ask("/v1/models")[1]["data"]}
        return str(rows.get(model, ""))

    def worker_of(self, model: str) -> psutil.Process | None:
        """Return the process of a model's worker."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if f"--model-name={model}" in " ".join(child.cmdline()) and "worker" in child.cmdline():
                return child
        return None


def _wait(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningUp]:
    """Run it with a mock of the demo model."""
    folder = tmp_path_factory.mktemp("up")
    shutil.copytree(checkpoint_dir(), folder / "second")
    running = RunningUp(folder)
    try:
        _wait(lambda: running.process.poll() is not None or "Ctrl-C stops" in running.log.read_text())
        yield running
    finally:
        running.process.send_signal(signal.SIGINT)
        running.process.wait(LIMIT_SECONDS)


def test_a_hundred_first_requests_load_a_model_once_and_its_memory_comes_back(up: RunningUp) -> None:
    """All are answered; the other model answers all the while; unloaded, no process of it is left."""
    source = str(up.log.parent / "second")
    assert up.ask("/v1/models/load", {"model": "second", "source": source, "on_demand": True})[0] == 200
    _wait(lambda: up.state_of("second") == "stored")
    assert up.worker_of("second") is None
    with ThreadPoolExecutor(NUM_FIRST + 1) as clients:
        other = clients.submit(up.complete, "baton-demo")
        statuses = list(clients.map(lambda _index: up.complete("second"), range(NUM_FIRST)))
    worker = up.worker_of("second")
    assert worker is not None
    held_bytes, before = worker.memory_info().rss, psutil.virtual_memory().available
    assert up.ask("/v1/models/unload", {"model": "second"})[0] == 200
    _wait(lambda: up.worker_of("second") is None)

    assert statuses == [200] * NUM_FIRST
    assert other.result() == 200
    assert up.log.read_text().count("model_change kind=load model=second") == 1
    assert not worker.is_running()
    assert held_bytes > 10_000_000
    assert psutil.virtual_memory().available > before - held_bytes  # others on this machine take some meanwhile
    assert up.complete("second") in (404, 503)
    assert up.complete("baton-demo") == 200
