"""Servers that benchmarks start, Baton itself among them: by its command line, with nodes of the benchmark's own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import psutil

import baton.v1
from baton.internal.v1.decode_service_pb2 import DecodeServiceGenerateRequest
from baton.internal.v1.node_pb2 import NODE_ROLE_PREFILL
from baton.internal.v1.router_service_pb2 import ListNodesRequest, NodeState
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.v1.generation_pb2 import SamplingParameters

START_SECONDS = 180.0
"""Time that a server has until it answers."""
_STOP_SECONDS = 60.0
_ENDED_WITH_PARENT = ("setpriv", "--pdeathsig", "INT") if shutil.which("setpriv") else ()
"""Not set by this process after a fork: that may hang where gRPC's library runs."""
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
            [*_ENDED_WITH_PARENT, *command],
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
            process_group=0,
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
    """Wait until a server answers a GET; raise RuntimeError with its log if it ends, TimeoutError if it is too late."""
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


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-_LOG_CHARACTERS:]


DEMO_MODEL = Path(baton.v1.__file__).parent.parent / "demo" / "checkpoint"
"""Folder of the demo model."""
MODEL = "model"
"""Served name."""
NodeTable = Mapping[str, str | int | float | bool]
"""A node as a `[[node]]` table of `baton up --nodes` has it: its role, its engine, and settings by name."""
ROUTER_PORT_OFFSET = 10
"""`baton up` puts the router's port there, above the REST API's."""
_REGISTER_SECONDS = 120.0


class Endpoints(NamedTuple):
    """Where a running Baton answers."""

    url: str
    router: str
    """host:port of the router."""
    process_id: int = 0
    """Of `baton up`, the parent of all; 0: there is none."""


def mock_node(role: str, hardware: str, time_scale: float) -> NodeTable:
    """Return a node that stands for a machine with Llama 3.1 8B in bfloat16, `time_scale` times slower than it is."""
    table = {"role": role, "engine": "mock", "mock_hardware": hardware, "mock_shape": "llama-3.1-8b"}
    scale = {"mock_time_scale": time_scale} if time_scale != 1 else {}
    if scale and role == "decode":  # what is silence at full speed would be a queue
        scale |= {"frame_timeout_seconds": 10 * time_scale, "prefill_queue_timeout_seconds": 30 * time_scale}
    return {**table, "dtype": "bfloat16", "num_blocks": 8192, **scale}


def real_node(role: str, engine: str) -> NodeTable:
    """Return a node that computes on this machine."""
    return {"role": role, "engine": engine, "num_blocks": 4096}


@contextmanager
def running_cluster(
    model: Path, nodes: Sequence[NodeTable], environment: Mapping[str, str] | None = None
) -> Iterator[Endpoints]:
    """Run `baton up` with these nodes, in order; raise RuntimeError if it ends first, TimeoutError if it is late."""
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        tables, log = Path(folder, "nodes.toml"), Path(folder, "log")
        tables.write_text("\n".join(map(_table, nodes)), encoding="utf-8")
        http_port = free_port(ROUTER_PORT_OFFSET)
        command = [sys.executable, "-m", "baton.cli", "up", "--model", str(model), "--model-name", MODEL]
        command += ["--nodes", str(tables), "--http-port", str(http_port), "--grpc-port", str(free_port())]
        with running_server(command, log, {"GOMP_SPINCOUNT": "0", **(environment or {})}) as process:
            url = f"http://127.0.0.1:{http_port}"
            wait_until_served(process, f"{url}/ready", log, "baton up")
            yield Endpoints(url, f"127.0.0.1:{http_port + ROUTER_PORT_OFFSET}", process.pid)


def registered_nodes(router: str, count: int) -> list[NodeState]:
    """Return a cluster's nodes once all have registered, and a link to who generates has been measured.

    Links are waited for where a node only prefills, two minutes at most: what then is not measured stays unknown.
    Raises TimeoutError if fewer register.
    """
    deadline, states = time.monotonic() + _REGISTER_SECONDS, list[NodeState]()
    with grpc.insecure_channel(router) as channel:
        stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        while (seconds := deadline - time.monotonic()) > 0:
            with suppress(grpc.RpcError):  # the router has just begun, or never does: the deadline decides
                states = list(stub.ListNodes(ListNodesRequest(), wait_for_ready=True, timeout=seconds).nodes)
            has_links = any(each.links for each in states)
            if len(states) == count and (has_links or all(each.node.role != NODE_ROLE_PREFILL for each in states)):
                return states
            time.sleep(0.2)
    if len(states) == count:
        return states
    raise TimeoutError(f"{len(states)} of {count} nodes registered within {_REGISTER_SECONDS:g} seconds")


def generate_request(
    name: str, prompt: Sequence[int], num_output_tokens: int, **fields: Any
) -> DecodeServiceGenerateRequest:
    """Return a request to a decode node for exactly so many tokens, greedily, with further fields of the message."""
    sampling = SamplingParameters(temperature=0, ignore_eos=True, max_token_count=num_output_tokens)
    asked: dict[str, Any] = {
        "request_id": name,
        "attempt": 1,
        "model_id": MODEL,
        "prompt_token_ids": prompt,
        "sampling": sampling,
    }
    return DecodeServiceGenerateRequest(**asked, **fields)


def services_of(process_id: int) -> dict[str, psutil.Process]:
    """Return the processes that `baton up` has started, by role."""
    found: dict[str, psutil.Process] = {}
    for child in psutil.Process(process_id).children(recursive=True):
        with suppress(psutil.Error):
            words = child.cmdline()
            found |= {name: child for name in ("gateway", "router", "decode") if name in words}
    return found


def _table(settings: NodeTable) -> str:
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in settings.items()
    ]
    return "\n".join(["[[node]]", *lines, ""])
