"""Baton's processes on hosts of a shaped network: cache index and router here, each node on the host that it names."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from baton.internal.v1.router_service_pb2 import NodeState
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from bench.links.network import NEAR_ADDRESS, Network, address_of
from bench.local_cluster import MODEL, NodeTable, registered_nodes, running_server

ROUTER = f"{NEAR_ADDRESS}:18910"
_CACHE_INDEX = f"{NEAR_ADDRESS}:18911"
_NODE_PORT = 18920


class Hosts:
    """All hosts. Made by `hosted_cluster`, which ends what `serve` starts."""

    def __init__(self, network: Network, model: Path, stack: ExitStack) -> None:
        self._network, self._stack = network, stack
        self.logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-bench-")))
        self._of_model = (f"--model-dir={model}", f"--model-name={MODEL}", f"--router-address={ROUTER}")
        channel = stack.enter_context(grpc.insecure_channel(ROUTER))
        self.router = RouterServiceStub(channel)  # type: ignore[no-untyped-call]

    def serve(self, role: str, *flags: str, host: int = 0) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a process of `baton serve`; return it and the file of its log."""
        of_model = () if role in ("router", "cache-index") else self._of_model
        command = [sys.executable, "-m", "baton.cli", "serve", role, *of_model, *flags]
        log = self.logs / f"{role}-{len(list(self.logs.iterdir()))}.log"
        environment = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
        process = running_server(self._network.command(host, command), log, environment)
        return self._stack.enter_context(process), log


@contextmanager
def hosted_cluster(
    network: Network, model: Path, nodes: Sequence[tuple[NodeTable, int]]
) -> Iterator[tuple[Hosts, list[NodeState]]]:
    """Run router, cache index and nodes as long as the context lasts; yield them once all have registered.

    `nodes`: each with the number of its host; the i-th is called node-i. Of `model`, mock engines take the tokenizer
    and the vocabulary. Raises TimeoutError if the nodes do not register; the message has the ends of the logs.
    """
    with ExitStack() as stack:
        hosts = Hosts(network, model, stack)
        index = f"--cache-index-address={_CACHE_INDEX}"
        for role, address, flags in (("cache-index", _CACHE_INDEX, ()), ("router", ROUTER, (index,))):
            name, _, port = address.partition(":")
            hosts.serve(role, f"--host={name}", f"--port={port}", "--insecure", *flags)
        for number, (table, host) in enumerate(nodes):
            place = (f"--host={address_of(host)}", f"--port={_NODE_PORT + number}", f"--node-id=node-{number}")
            settings = [f"--{key.replace('_', '-')}={value}" for key, value in table.items() if key != "role"]
            hosts.serve(str(table["role"]), *place, index, "--insecure", *settings, host=host)
        try:
            states = registered_nodes(ROUTER, len(nodes))
        except TimeoutError as error:
            ends = (path.read_text()[-2000:] for path in sorted(hosts.logs.iterdir()))
            raise TimeoutError("\n".join((str(error), *ends))) from error
        yield hosts, states
