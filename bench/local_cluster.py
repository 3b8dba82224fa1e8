"""Baton itself, started through its command line, for benchmarks that bring their own nodes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import baton.v1
from bench.processes import free_port, running_server, wait_until_served

DEMO_MODEL = Path(baton.v1.__file__).parent.parent / "demo" / "checkpoint"
"""Folder of the demo model."""
NodeTable = Mapping[str, str | int | float | bool]
"""A node as a `[[node]]` table of `baton up --nodes` has it: its role, its engine, and settings by name."""
ROUTER_PORT_OFFSET = 10
"""`baton up` puts the router's port there, above the REST API's."""


class Endpoints(NamedTuple):
    """Where a running Baton answers."""

    url: str
    """Of the gateway."""
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
    """Run `baton up` with nodes of these tables, in order.

    Args:
        model: Folder of the model.
        nodes: Their settings.
        environment: Settings of all services, as variables.

    Raises:
        RuntimeError: If it ends before it is ready; the message has the end of its log.
        TimeoutError: If it is not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        tables, log = Path(folder, "nodes.toml"), Path(folder, "log")
        tables.write_text("\n".join(map(_table, nodes)), encoding="utf-8")
        http_port = free_port(ROUTER_PORT_OFFSET)
        command = [sys.executable, "-m", "baton.cli", "up", "--model", str(model), "--model-name", "model"]
        command += ["--nodes", str(tables), "--http-port", str(http_port), "--grpc-port", str(free_port())]
        with running_server(command, log, {"GOMP_SPINCOUNT": "0", **(environment or {})}) as process:
            url = f"http://127.0.0.1:{http_port}"
            wait_until_served(process, f"{url}/ready", log, "baton up")
            yield Endpoints(url, f"127.0.0.1:{http_port + ROUTER_PORT_OFFSET}", process.pid)


def _table(settings: NodeTable) -> str:
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in settings.items()
    ]
    return "\n".join(["[[node]]", *lines, ""])
