"""The servers whose cost is measured: Baton, and ai-dynamo, each with a mock engine of a fixed step time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from bench.processes import free_port, running_server

MODEL = "mock"
MAX_STREAMS = 512
"""Requests that each engine computes at once."""
_START_SECONDS = 60.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_BLOCK_TOKENS = 16
_NUM_BLOCKS = 16384


class Stack:
    """Processes that serve MODEL, alive inside `with`. Their logs are in the folder given."""

    name = ""
    """In results."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._stack = ExitStack()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.http_port = free_port()
        """Of the OpenAI API."""

    def __enter__(self) -> Self:
        try:
            self.start()
            self._wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(self) -> None:
        """Start the processes."""
        raise NotImplementedError

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of each process so far, and under "NAME/main" that of its first thread."""
        times: dict[str, float] = {}
        for name, process in self._processes.items():
            times[name] = _stat_seconds(Path(f"/proc/{process.pid}/stat"))
            times[f"{name}/main"] = _stat_seconds(Path(f"/proc/{process.pid}/task/{process.pid}/stat"))
        return times

    def _run(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        server = running_server(command, self._log(name), environment, folder=self._logs)
        self._processes[name] = self._stack.enter_context(server)

    def _log(self, name: str) -> Path:
        return self._logs / f"{self.name}-{name}.log"

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    log = self._log(name).read_text(encoding="utf-8", errors="replace")
                    raise RuntimeError(f"{name} of {self.name} ended with {process.returncode}:\n{log[-2000:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v1/models", timeout=2) as answer:
                    if MODEL in answer.read().decode() and self.is_ready():
                        return
            except OSError:
                pass
            time.sleep(0.2)
        raise TimeoutError(f"{self.name} did not serve within {_START_SECONDS:g} s; see {self._logs}")

    def is_ready(self) -> bool:
        """Return whether requests would be served, once the model is listed."""
        return True


class BatonStack(Stack):
    """Gateway, router, cache index and one decode node.

    Args:
        model: Folder of the model.
        step_seconds: Time of every step of the engine; 0: none.
        logs: Folder for logs.
    """

    name = "baton"

    def __init__(self, model: Path, step_seconds: float, logs: Path) -> None:
        super().__init__(logs)
        self._model = model
        self._step_seconds = step_seconds
        self.decode_port = free_port()
        """Of the decode node's gRPC API."""

    def start(self) -> None:
        """Start the processes."""
        router_port, index_port = str(free_port()), str(free_port())
        index = ("--cache-index-address", f"127.0.0.1:{index_port}")
        common = (
            "--model-dir",
            str(self._model),
            "--model-name",
            MODEL,
            "--router-address",
            f"127.0.0.1:{router_port}",
        )
        self._serve("cache-index", "--port", index_port)
        self._serve("router", "--port", router_port, *index)
        self._serve(
            "decode", "--port", str(self.decode_port), *common, *index, "--engine", "mock",
            "--mock-step-seconds", str(self._step_seconds), "--max-batch-size", str(MAX_STREAMS),
            "--num-blocks", str(_NUM_BLOCKS), "--block-tokens", str(_BLOCK_TOKENS), "--max-step-tokens", "8192",
        )  # fmt: skip
        self._serve("gateway", "--http-port", str(self.http_port), "--grpc-port", "0", *common)

    def is_ready(self) -> bool:
        """Return whether requests would be served."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/ready", timeout=2) as answer:
            return bool(answer.status == 200)

    def _serve(self, role: str, *flags: str) -> None:
        command = [sys.executable, "-m", "baton.cli", "serve", role, *flags, "--log-level", "warning"]
        self._run(role, command, {"OMP_NUM_THREADS": "1"})


class DynamoStack(Stack):
    """ai-dynamo's frontend with its router inside, and its mocker; discovery by files, events by ZeroMQ.

    Args:
        python: Interpreter of the virtual environment in which ai-dynamo is installed.
        model: Folder of the model.
        step_seconds: Time of every decode step of the mocker; 0: no time passes in it.
        logs: Folder for logs.
    """

    name = "dynamo"

    def __init__(self, python: Path, model: Path, step_seconds: float, logs: Path) -> None:
        super().__init__(logs)
        self._python = python
        self._model = model
        self._step_seconds = step_seconds

    def start(self) -> None:
        """Start the processes."""
        environment = {
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(self._logs / "dynamo-discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_EVENT_PLANE": "zmq",
            "DYN_LOG": "warn",
            "HF_HUB_OFFLINE": "1",
        }
        python = str(self._python)
        frontend = ("--http-host", "127.0.0.1", "--http-port", str(self.http_port), "--router-mode", "kv")
        self._run("gateway", [python, "-m", "dynamo.frontend", *frontend], environment)
        mocker = (
            "--model-path", str(self._model), "--model-name", MODEL, "--num-gpu-blocks-override", str(_NUM_BLOCKS),
            "--block-size", str(_BLOCK_TOKENS), "--max-num-seqs", str(MAX_STREAMS), "--max-num-batched-tokens", "8192",
            *self._timing(),
        )  # fmt: skip
        self._run("decode", [python, "-m", "dynamo.mocker", *mocker], environment)

    def _timing(self) -> Sequence[str]:
        """Return flags for steps of a fixed time: the mocker interpolates in a table, which is flat here."""
        if self._step_seconds == 0:
            return ("--speedup-ratio", "0")
        import numpy as np

        milliseconds = self._step_seconds * 1000
        table = self._logs / "dynamo-timing.npz"
        ends = [1.0, 1e6]
        np.savez(
            table,
            prefill_isl=ends,
            prefill_ttft_ms=[milliseconds] * 2,
            decode_active_kv_tokens=ends,
            decode_context_length=ends,
            decode_itl=[[milliseconds] * 2] * 2,
        )
        return ("--planner-profile-data", str(table))


def _stat_seconds(path: Path) -> float:
    """Return utime + stime of a process or thread (proc(5), fields 14 and 15)."""
    fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
