"""Baton itself, started through its command line with one decode node, for benchmarks that compare its options."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.processes import free_port, running_server, wait_until_served


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
    with tempfile.TemporaryDirectory(prefix="baton-bench-") as folder:
        nodes, log = Path(folder, "nodes.toml"), Path(folder, "log")
        nodes.write_text(_table(settings), encoding="utf-8")
        http_port = free_port()
        command = [sys.executable, "-m", "baton.cli", "up", "--model", str(model), "--model-name", "model"]
        command += ["--nodes", str(nodes), "--http-port", str(http_port), "--grpc-port", str(free_port())]
        with running_server(command, log, {"GOMP_SPINCOUNT": "0"}) as process:
            url = f"http://127.0.0.1:{http_port}"
            wait_until_served(process, f"{url}/ready", log, "baton up")
            yield url


def _table(settings: Mapping[str, str | int | bool]) -> str:
    lines = [
        f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in settings.items()
    ]
    return "\n".join(["[[node]]", 'role = "decode"', *lines, ""])
