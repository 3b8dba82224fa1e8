"""Models on demand beside others: loaded once by a hundred first requests, gone with their memory, and taking turns.

BATON_LIFECYCLE_OUT names a file for the numbers.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
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
from bench.results_file import describe_machine, write_results
from order import RUNS_ALL

pytestmark = pytest.mark.skipif(not RUNS_ALL, reason="a sample of it is simulated: run `make matrix`")

NUM_FIRST = 100
TURN_SECONDS = 8
TRACE_SECONDS = 90.0
LIMIT_SECONDS = 300.0
OUT = os.environ.get("BATON_LIFECYCLE_OUT", "")
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
            environment = {**os.environ, "COLUMNS": "400", "BATON_ROUTER_MODEL_TURN_SECONDS": str(TURN_SECONDS)}
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)

    def ask(self, path: str, body: dict[str, object] | None = None) -> tuple[int, Any]:
        """Return status and document of an answer; of a refusal, also after what time to come again."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_SECONDS) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, {**json.load(error), "retry_after": float(error.headers.get("retry-after", 0))}

    def complete(self, model: str) -> int:
        """Return the status of a short completion."""
        return self.ask("/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 4})[0]

    def complete_in_the_end(self, model: str) -> float:
        """Complete, again as soon as a refusal says so; return the seconds until it was answered."""
        began = time.monotonic()
        while True:
            status, answer = self.ask("/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 4})
            if status == 200:
                return time.monotonic() - began
            assert (status, answer["retry_after"] > 0) == (503, True), answer
            assert time.monotonic() - began < LIMIT_SECONDS, answer
            time.sleep(min(answer["retry_after"], 1.0))  # a client that has no patience

    def loads_of(self, *models: str) -> int:
        """Return how often the router has ordered to load them."""
        return sum(self.log.read_text().count(f"model_change kind=load model={model} ") for model in models)

    def state_of(self, model: str) -> str:
        """Return where a model stands; empty: the gateway does not know it."""
        rows = {row["id"]: row["state"] for row in self.ask("/v1/models")[1]["data"]}
        return str(rows.get(model, ""))

    def resident_bytes(self) -> int:
        """Return the memory of all its processes, what they share counted once for each."""
        own = psutil.Process(self.process.pid)
        return sum(each.memory_info().rss for each in (own, *own.children(recursive=True)))

    def worker_of(self, model: str) -> psutil.Process | None:
        """Return the process of a model's worker."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if f"--model-name={model}" in " ".join(child.cmdline()) and "worker" in child.cmdline():
                return child
        return None


def _rounded(seconds: list[float]) -> list[float]:
    return [round(each, 3) for each in seconds]


def _wait(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="module")
def numbers() -> Iterator[dict[str, object]]:
    """Keep what the tests measure."""
    found: dict[str, object] = {}
    yield found
    if OUT:
        known = json.loads(Path(OUT).read_text()) if Path(OUT).exists() else {}
        command = "BATON_MATRIX=1 pytest tests/system/models/test_lifecycle.py"
        write_results(Path(OUT), known | {"machine": describe_machine(), "command": command} | found)


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


def test_a_hundred_first_requests_load_a_third_model_once_and_its_memory_comes_back(
    up: RunningUp, numbers: dict[str, object]
) -> None:
    """All are answered in the end, the other two all the while; unloaded, no process of it is left."""
    source = str(up.log.parent / "second")
    assert up.ask("/v1/models/load", {"model": "second", "source": source})[0] == 200
    _wait(lambda: up.state_of("second") == "serving")
    assert up.ask("/v1/models/load", {"model": "third", "source": source, "on_demand": True})[0] == 200
    _wait(lambda: up.state_of("third") == "stored")
    assert up.worker_of("third") is None
    before = up.resident_bytes()
    with ThreadPoolExecutor(NUM_FIRST + 2) as clients:
        others = [clients.submit(up.complete, name) for name in ("baton-demo", "second")]
        waited = list(clients.map(lambda _index: up.complete_in_the_end("third"), range(NUM_FIRST)))
    worker = up.worker_of("third")
    assert worker is not None
    held_bytes, during = worker.memory_info().rss, up.resident_bytes()
    assert up.ask("/v1/models/unload", {"model": "third"})[0] == 200
    _wait(lambda: up.worker_of("third") is None)
    after = up.resident_bytes()
    megabytes = [f"{each / 1e6:.0f}" for each in (before, during, after, held_bytes)]
    print("all processes before, with and after it: {}, {}, {} MB; it held {}".format(*megabytes))
    numbers |= {
        "first_requests": NUM_FIRST,
        "loads_by_first_requests": up.loads_of("third"),
        "first_waits": _rounded(waited),
    }
    numbers |= {"held_bytes": held_bytes, "resident_bytes_before_with_and_after": [before, during, after]}

    assert len(waited) == NUM_FIRST
    assert [each.result() for each in others] == [200, 200]
    assert up.loads_of("third") == 1
    assert not worker.is_running()
    assert held_bytes > 10_000_000
    assert during - after > 0.9 * held_bytes  # others hold a hundred requests' memory, and may keep some
    assert after - before < 0.3 * held_bytes
    assert up.complete("third") in (404, 503)
    assert up.complete("baton-demo") == 200


@pytest.fixture(scope="module")
def sharing(up: RunningUp) -> RunningUp:
    """Have two models stored of which the machine has room for one: their files say so, and hold nothing."""
    for name in ("left", "right"):
        folder = up.log.parent / name
        shutil.copytree(checkpoint_dir(), folder)
        rows = int(0.3 * psutil.virtual_memory().available) // 2048  # float32 makes twice of it
        padding = {"dtype": "BF16", "shape": [rows, 1024], "data_offsets": [0, 2048 * rows]}
        header = json.dumps({"beside": padding}).encode()
        with (folder / "beside.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 2048 * rows)
        assert up.ask("/v1/models/load", {"model": name, "source": str(folder), "on_demand": True})[0] == 200
        _wait(lambda name=name: up.state_of(name) == "stored")
    return up


def test_an_alternating_trace_loads_each_of_two_models_once_a_turn(
    sharing: RunningUp, numbers: dict[str, object]
) -> None:
    """Every request is answered in the end, whichever model it is for."""
    began, waited = time.monotonic(), []
    while time.monotonic() - began < TRACE_SECONDS:
        waited += [sharing.complete_in_the_end(name) for name in ("left", "right")]
    seconds, loads = time.monotonic() - began, sharing.loads_of("left", "right")
    print(f"{len(waited)} requests in turns, {seconds:.0f} s: {loads} loads, longest wait {max(waited):.1f} s")
    numbers |= {
        "turn_seconds": TURN_SECONDS,
        "trace_seconds": round(seconds, 1),
        "trace_loads": loads,
        "trace_waits": _rounded(waited),
    }

    assert 2 <= loads <= seconds / TURN_SECONDS + 2


def test_a_hot_model_delays_a_cold_one_by_its_turn_at_most(sharing: RunningUp, numbers: dict[str, object]) -> None:
    """Eight clients never cease to ask for one; somebody asks for the other now and then."""
    is_over = threading.Event()
    hot: list[float] = []

    def flood() -> None:
        while not is_over.is_set():
            hot.append(sharing.complete_in_the_end("left"))

    sharing.complete_in_the_end("right")
    alone = sharing.complete_in_the_end("left")  # a turn, and a load
    with ThreadPoolExecutor(8) as clients:
        flooding = [clients.submit(flood) for _ in range(8)]
        try:
            cold = []
            for _ in range(3):
                cold.append(sharing.complete_in_the_end("right"))
                time.sleep(TURN_SECONDS + 2)  # until the hot one is back
        finally:
            is_over.set()
        for each in flooding:
            each.result()
    print(
        f"hot: {len(hot)} requests; cold waited {', '.join(f'{each:.1f}' for each in cold)} s, without it {alone:.1f} s"
    )
    numbers |= {"hot_requests": len(hot), "cold_waits": _rounded(cold), "cold_wait_without_hot": round(alone, 3)}

    assert len(hot) > 100
    assert max(cold) < alone + TURN_SECONDS + 2.0
