"""The pair of nodes that is put under load: how it serves, and where it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import local_cluster as cluster
from bench.links.hosts import ROUTER, hosted_cluster
from bench.links.network import PAYLOAD_SHARE, network_of
from bench.node_rates import NodeRates, rates_of

DEPLOYMENTS = {
    "disaggregated": ("prefill", "decode"),
    "aggregated": ("decode", "decode"),
    "both-parts": ("worker", "worker"),
}
"""Roles of the two nodes by the deployment's name."""
_HARDWARE = ("a100", "m3-ultra")
_GIGABIT = 1e9


@dataclass(frozen=True, slots=True)
class Pair:
    """Two nodes: the first is meant for prompts, the second for output."""

    deployment: str
    """Key of `DEPLOYMENTS`."""
    engines: tuple[str, str]
    time_scale: float = 1.0
    """How many times slower than their hardware mocks are."""
    link_gigabits_per_second: float = 0.0
    """Of the link from the first node to the second, in the hardware's time; 0: both on one host."""

    @property
    def link_bytes_per_second(self) -> float:
        """Return the payload that a shaped link carries per second of the run's clock; 0: not shaped."""
        return self.link_gigabits_per_second * _GIGABIT / 8 * PAYLOAD_SHARE / self.time_scale

    @property
    def tables(self) -> list[cluster.NodeTable]:
        """Return the nodes as `baton up --nodes` takes them."""
        roles = DEPLOYMENTS[self.deployment]
        return [
            cluster.mock_node(role, hardware, self.time_scale) if engine == "mock" else cluster.real_node(role, engine)
            for role, engine, hardware in zip(roles, self.engines, _HARDWARE, strict=True)
        ]


@contextmanager
def running_pair(pair: Pair, model: Path) -> Iterator[cluster.Endpoints]:
    """Run pair, gateway, router and cache index, maybe a shaped link; raise RuntimeError, TimeoutError or its own."""
    if not pair.link_gigabits_per_second:
        with cluster.running_cluster(model, pair.tables) as endpoints:
            yield endpoints
        return
    with network_of() as network:
        network.set_rate(1, pair.link_gigabits_per_second * _GIGABIT / pair.time_scale)
        nodes = [(table, int(not number)) for number, table in enumerate(pair.tables)]
        with hosted_cluster(network, model, nodes) as (hosts, _):
            http_port = cluster.free_port()
            flags = (f"--http-port={http_port}", "--grpc-host=127.0.0.1", "--grpc-port=0")
            url = f"http://127.0.0.1:{http_port}"
            process, log = hosts.serve("gateway", *flags)
            cluster.wait_until_served(process, f"{url}/ready", log, "baton serve gateway")
            yield cluster.Endpoints(url, ROUTER)


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
    """Return speeds and link as the nodes registered them, once they have and the link has been measured."""
    states = cluster.registered_nodes(router, 2)
    nodes = sorted((rates_of(state.node) for state in states), key=lambda node: -node.prefill_flops)
    links = [link for state in states for link in state.links if link.from_node_id == nodes[0].node_id]
    return NodeFacts(nodes[0], nodes[1], max((link.bytes_per_second for link in links), default=0.0))
