"""The processes of a test cluster: names, ports, settings and environments."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from baton.cli.local.environment import worker_environment
from system.process import ServedProcess

HOST = "127.0.0.1"
MODEL_NAME = "tiny"
"""Name under which every test cluster serves its model."""

EngineName = Literal["torch", "mlx", "mock"]

_FIRST_PORT, _END_PORT = 20_000, 32_000
"""Below the ports that the kernel gives to outgoing connections, so that a restart finds its port still free."""
_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "gateway": {"node_poll_seconds": "0.1", "drain_seconds": "5"},
    "router": {"report_interval_seconds": "0.1"},
    "cache-index": {},
    "prefill": {"num_threads": "1", "num_blocks": "512"},
    "decode": {"num_threads": "1", "num_blocks": "512", "probe_bytes": "65536"},
    "worker": {"num_threads": "1", "num_blocks": "512", "probe_bytes": "65536"},
}
"""Settings by role, before those of the test."""


@dataclass(frozen=True)
class ClusterPlan:
    """What `Cluster` starts."""

    model_dir: Path
    """Checkpoint of all nodes."""
    prefill: Sequence[EngineName]
    """Engine of each prefill node."""
    decode: Sequence[EngineName]
    """Engine of each decode node."""
    worker: Sequence[EngineName]
    """Engine of each node that does both."""
    settings: Mapping[str, Mapping[str, str]]
    """Settings by role or process name; win over the defaults."""
    folder: Path
    """Where logs go."""
    routers: int = 1
    """Routers; those after the first are named router-1, ..."""

    @cached_property
    def engines(self) -> Mapping[str, EngineName]:
        """Engine of each node by name."""
        return {
            **{f"prefill-{index}": engine for index, engine in enumerate(self.prefill)},
            **{f"decode-{index}": engine for index, engine in enumerate(self.decode)},
            **{f"worker-{index}": engine for index, engine in enumerate(self.worker)},
        }

    @cached_property
    def ports(self) -> Mapping[str, int]:
        """Port of each process's gRPC server by name, and "http"."""
        return free_ports(("http", "gateway", *self.router_names, "cache-index", *self.engines))

    @property
    def router_names(self) -> tuple[str, ...]:
        """Names of the routers."""
        return ("router", *(f"router-{index}" for index in range(1, self.routers)))

    def processes(self) -> dict[str, ServedProcess]:
        """Return all processes by name, in the order of their start."""
        return {
            "cache-index": self._process("cache-index", "cache-index", self._listening("cache-index")),
            **{name: self._process(name, "router", self._router_settings(name)) for name in self.router_names},
            **{name: self._worker(name, engine) for name, engine in self.engines.items()},
            "gateway": self._process("gateway", "gateway", self._gateway_settings()),
        }

    def _worker(self, name: str, engine: EngineName) -> ServedProcess:
        settings = {
            **self._listening(name),
            "node_id": name,
            "router_address": ",".join(map(self._address, self.router_names)),
            "cache_index_address": self._address("cache-index"),
            "engine": engine,
            "model_dir": str(self.model_dir),
            "model_name": MODEL_NAME,
        }
        return self._process(name, name.rpartition("-")[0], settings, worker_environment(engine, 1))

    def _process(
        self, name: str, role: str, settings: Mapping[str, str], environment: Mapping[str, str] | None = None
    ) -> ServedProcess:
        merged = {**_DEFAULTS[role], **settings, **self.settings.get(role, {}), **self.settings.get(name, {})}
        variables = {**(environment or {}), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        given = {key: value for key, value in merged.items() if value}  # empty ones are as if nobody had given them
        return ServedProcess(name, role, given, variables, self.folder / f"{name}.log")

    def _router_settings(self, name: str) -> Mapping[str, str]:
        return {**self._listening(name), "cache_index_address": self._address("cache-index")}

    def _gateway_settings(self) -> Mapping[str, str]:
        return {
            "model_dir": str(self.model_dir),
            "model_name": MODEL_NAME,
            "router_address": ",".join(map(self._address, self.router_names)),
            "http_host": HOST,
            "http_port": str(self.ports["http"]),
            "grpc_host": HOST,
            "grpc_port": str(self.ports["gateway"]),
        }

    def _listening(self, name: str) -> Mapping[str, str]:
        return {"host": HOST, "port": str(self.ports[name])}

    def _address(self, name: str) -> str:
        return f"{HOST}:{self.ports[name]}"


def free_ports(keys: Sequence[str]) -> Mapping[str, int]:
    """Return a port for each key on which nobody listens; nothing else in the test run is given it, or the next one."""
    ports: dict[str, int] = {}
    while len(ports) < len(keys):
        port = next(_candidates())
        if not any(_is_taken(each) for each in (port, port + 1)):
            ports[keys[len(ports)]] = port
    return ports


@cache
def _candidates() -> Iterator[int]:
    """Return the ports of this process of the test run, none again soon: what was given may not be listened on yet."""
    worker, num_workers = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    own = range(_FIRST_PORT + 2 * int(worker.removeprefix("gw")), _END_PORT, 2 * int(num_workers))
    return itertools.cycle(random.SystemRandom().sample(own, len(own)))


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
