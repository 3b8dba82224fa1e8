"""The pair of nodes that is put under load: how it serves, and where it runs."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from baton.v1 import router_service_pb2
from baton.v1.router_service_pb2 import ListNodesResponse
from baton.v1.router_service_pb2_grpc import RouterServiceStub
from bench.links.shaped_link import FAR_ADDRESS, NEAR_ADDRESS, ShapedLink, shaped_link
from bench.local_cluster import Endpoints, NodeTable, running_cluster
from bench.node_rates import NodeRates, rates_of
from bench.processes import free_port, running_server, wait_until_served

DEPLOYMENTS = {
    "disaggregated": ("prefill", "decode"),
    "aggregated": ("decode", "decode"),
    "both-parts": ("worker", "worker"),
}
"""Roles of the two nodes by the deployment's name."""
_HARDWARE = ("a100", "m3-ultra")
_MOCK: NodeTable = {"mock_shape": "llama-3.1-8b", "dtype": "bfloat16", "num_blocks": 8192}
_REAL: NodeTable = {"num_blocks": 4096}
_GIGABIT = 1e9
_PAYLOAD_SHARE = 1448 / 1514
"""Payload of a full packet: Ethernet, IP and TCP with timestamps take the rest of what the shaper counts."""
_LINK_SECONDS = 60.0
_ROUTER_PORT, _CACHE_INDEX_PORT, _NODE_PORT = 18970, 18971, 18980


@dataclass(frozen=True, slots=True)
class Pair:
    """Two nodes: the first is meant for prompts, the second for output."""

    deployment: str
    """Key of `DEPLOYMENTS`."""
    engines: tuple[str, str]
    """Of each."""
    time_scale: float = 1.0
    """How many times slower than their hardware mocks are."""
    link_gigabits_per_second: float = 0.0
    """Of the link from the first node to the second, in the hardware's time; 0: both on one host."""

    @property
    def link_bytes_per_second(self) -> float:
        """Return the payload that a shaped link carries per second of the run's clock; 0: not shaped."""
        return self.link_gigabits_per_second * _GIGABIT / 8 * _PAYLOAD_SHARE / self.time_scale

    @property
    def tables(self) -> list[NodeTable]:
        """Return the nodes as `baton up --nodes` takes them."""
        roles = DEPLOYMENTS[self.deployment]
        return [
            {"role": role, "engine": engine, **self._settings(engine, hardware)}
            for role, engine, hardware in zip(roles, self.engines, _HARDWARE, strict=True)
        ]

    def _settings(self, engine: str, hardware: str) -> NodeTable:
        if engine != "mock":
            return _REAL
        scale = {"mock_time_scale": self.time_scale} if self.time_scale != 1 else {}
        return {"mock_hardware": hardware, **_MOCK, **scale}


@contextmanager
def running_pair(pair: Pair, model: Path) -> Iterator[Endpoints]:
    """Run the pair with gateway, router and cache index, on this host or on two behind a shaped link.

    Raises:
        RuntimeError: If a process ends before it is ready.
        TimeoutError: If one is not ready in time.
        subprocess.CalledProcessError: If a link is wanted and the caller may not make one.
    """
    if not pair.link_gigabits_per_second:
        with running_cluster(model, pair.tables) as endpoints:
            yield endpoints
        return
    with shaped_link() as link:
        link.set_rate(pair.link_gigabits_per_second * _GIGABIT / pair.time_scale)
        with _on_two_hosts(link, pair.tables, model) as endpoints:
            yield endpoints


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the router knows of the pair before the load."""

    prefiller: NodeRates
    """The node that computes prompts sooner."""
    decoder: NodeRates
    """The other one."""
    link_bytes_per_second: float
    """As measured by the receiving node; 0: not known."""


def read_facts(router: str) -> NodeFacts:
    """Return speeds and link as the nodes registered them; waits until the link has been measured, a minute at most."""
    deadline = time.monotonic() + _LINK_SECONDS
    with grpc.insecure_channel(router) as channel:
        stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        while True:
            answer: ListNodesResponse = stub.ListNodes(
                router_service_pb2.ListNodesRequest(), wait_for_ready=True, timeout=30
            )
            nodes = sorted((rates_of(state.node) for state in answer.nodes), key=lambda node: -node.prefill_flops)
            if len(nodes) == 2:
                facts = NodeFacts(nodes[0], nodes[1], _link_rate(answer, nodes[0].node_id))
                if facts.link_bytes_per_second or time.monotonic() > deadline or nodes[0].can_decode:
                    return facts
            time.sleep(0.5)


def _link_rate(answer: ListNodesResponse, sender_id: str) -> float:
    rates = [link.bytes_per_second for state in answer.nodes for link in state.links if link.from_node_id == sender_id]
    return float(max(rates, default=0.0))


@contextmanager
def _on_two_hosts(link: ShapedLink, nodes: Sequence[NodeTable], model: Path) -> Iterator[Endpoints]:
    """Run the first node on the far host, everything else here."""
    router, cache_index = f"{NEAR_ADDRESS}:{_ROUTER_PORT}", f"{NEAR_ADDRESS}:{_CACHE_INDEX_PORT}"
    named = (f"--model-dir={model}", "--model-name=model", f"--router-address={router}")
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))

        processes: list[subprocess.Popen[bytes]] = []

        def serve(name: str, role: str, *flags: str, is_far: bool = False) -> Path:
            command = [sys.executable, "-m", "baton.cli", "serve", role, *flags]
            log = logs / f"{name}.log"
            environment = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
            process = running_server(link.far_command(command) if is_far else command, log, environment)
            processes.append(stack.enter_context(process))
            return log

        serve("cache-index", "cache-index", f"--host={NEAR_ADDRESS}", f"--port={_CACHE_INDEX_PORT}")
        index = f"--cache-index-address={cache_index}"
        serve("router", "router", f"--host={NEAR_ADDRESS}", f"--port={_ROUTER_PORT}", index)
        for number, table in enumerate(nodes):
            host = NEAR_ADDRESS if number else FAR_ADDRESS
            flags = [f"--{key.replace('_', '-')}={value}" for key, value in table.items() if key != "role"]
            place = (f"--host={host}", f"--port={_NODE_PORT + number}", f"--node-id=node-{number}")
            serve(f"node-{number}", str(table["role"]), *place, *named, index, *flags, is_far=not number)
        http_port = free_port()
        http = ("--http-host=127.0.0.1", f"--http-port={http_port}", "--grpc-host=127.0.0.1", "--grpc-port=0")
        url = f"http://127.0.0.1:{http_port}"
        log = serve("gateway", "gateway", *named, *http)
        wait_until_served(processes[-1], f"{url}/ready", log, "baton serve gateway")
        _wait_for_nodes(router, len(nodes), logs)
        yield Endpoints(url, router)


def _wait_for_nodes(router: str, num_nodes: int, logs: Path) -> None:
    deadline = time.monotonic() + 2 * _LINK_SECONDS
    with grpc.insecure_channel(router) as channel:
        stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
        while time.monotonic() < deadline:
            if len(stub.ListNodes(router_service_pb2.ListNodesRequest(), timeout=30).nodes) == num_nodes:
                return
            time.sleep(0.2)
    tails = "\n".join(path.read_text()[-1500:] for path in sorted(logs.glob("node-*.log")))
    raise TimeoutError(f"{num_nodes} nodes did not register\n{tails}")
