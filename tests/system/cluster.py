"""A whole Baton on 127.0.0.1: real processes, as `baton serve` runs them, that tests may kill one by one.

```python
with Cluster(checkpoint("llama"), prefill=("torch",), decode=("mlx",)) as cluster:
    requests.post(f"{cluster.base_url}/completions", ...)
    cluster.kill("decode-0")
    cluster.restart("decode-0")
```
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from baton.internal.v1.router_service_pb2 import ListNodesRequest, NodeState
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from system.plan import HOST, ClusterPlan, EngineName

READY_SECONDS = 200.0
"""Longest time until a cluster serves; the machines that run the tests may be busy."""

_POLL_SECONDS = 0.02
_CALL_SECONDS = 10.0


class Cluster:
    """Gateway, router, cache index and nodes named "prefill-0", "decode-0", "worker-0", ... on one machine.

    Invariants: ports stay the same over restarts; after the context every process is gone, however it was left.

    Args:
        model_dir: Checkpoint that all nodes serve as MODEL_NAME.
        prefill: Engine of each prefill node.
        decode: Engine of each decode node.
        worker: Engine of each node that does both.
        routers: How many; those after the first are named router-1, ...
        settings: Further settings by role or process name, each a mapping from field name to value.
    """

    def __init__(
        self,
        model_dir: Path,
        *,
        prefill: Sequence[EngineName] = ("torch",),
        decode: Sequence[EngineName] = ("torch",),
        worker: Sequence[EngineName] = (),
        routers: int = 1,
        settings: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="baton-cluster-")
        plan = ClusterPlan(model_dir, prefill, decode, worker, settings or {}, Path(self._folder.name), routers)
        self.node_names = tuple(plan.engines)
        """Of all nodes."""
        self.processes = plan.processes()
        """By name, in the order of their start."""
        self._ports = plan.ports
        self._signalled: set[str] = set()

    @property
    def base_url(self) -> str:
        """The OpenAI API."""
        return f"http://{HOST}:{self._ports['http']}/v1"

    @property
    def http_address(self) -> tuple[str, int]:
        """Host and port of the REST API."""
        return HOST, self._ports["http"]

    @property
    def grpc_address(self) -> str:
        """The public gRPC API."""
        return self.address_of("gateway")

    @property
    def log_files(self) -> Mapping[str, Path]:
        """Log of each process by name; removed with the cluster."""
        return {name: process.log_file for name, process in self.processes.items()}

    def log_tails(self) -> Mapping[str, str]:
        """Return the last lines of each process's log by name."""
        return {name: process.log_tail() for name, process in self.processes.items()}

    def address_of(self, name: str) -> str:
        """Return host:port of a process's gRPC server."""
        return f"{HOST}:{self._ports[name]}"

    def pid_of(self, name: str) -> int:
        """Return a process's id."""
        return self.processes[name].pid

    def __enter__(self) -> Self:
        try:
            for process in self.processes.values():
                process.start()
            self.wait_ready()
        except BaseException as error:
            self._explain(error)
            self.stop()
            raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._explain(error)
        self.stop()

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process; after SIGKILL it is gone."""
        self._signalled.add(name)
        self.processes[name].send(number)
        if number is signal.SIGKILL:
            self.processes[name].wait()

    def start(self, name: str) -> None:
        """Start a process that has ended; returns before it serves."""
        self.processes[name].start()
        self._signalled.discard(name)

    def restart(self, name: str) -> None:
        """Kill a process if it runs, start it again, and wait until the cluster serves."""
        self.processes[name].kill()
        self.start(name)
        self.wait_ready()

    def heal(self) -> None:
        """Start again whatever has ended, and wait until the cluster serves and no node has work."""
        for name, process in self.processes.items():
            if process.exit_status is not None:
                self.start(name)
            process.send(signal.SIGCONT)
        self.wait_ready()
        self.wait_idle()

    def stop(self) -> None:
        """End every process."""
        for process in self.processes.values():
            process.kill()
        self._folder.cleanup()

    def nodes(self) -> Mapping[str, NodeState]:
        """Return what the router knows of each node, by name; empty if it does not answer."""
        with grpc.insecure_channel(self.address_of("router")) as channel:
            try:
                answer = RouterServiceStub(channel).ListNodes(ListNodesRequest(), timeout=_CALL_SECONDS)  # type: ignore[no-untyped-call]
            except grpc.RpcError:
                return {}
        return {state.node.node_id: state for state in answer.nodes}

    def node(self, name: str) -> NodeState:
        """Return what the router knows of a node, as soon as it tells.

        Raises:
            AssertionError: If it does not within READY_SECONDS.
        """
        found: list[NodeState] = []

        def find() -> bool:
            found.extend(state for node_id, state in self.nodes().items() if node_id == name)
            return bool(found)

        self.wait_until(find, f"the router tells of {name}")
        return found[0]

    def is_serving(self, name: str) -> bool:
        """Return whether a process's gRPC server says that it serves; one that does not listen yet costs little."""
        with socket.socket() as probe:
            if probe.connect_ex((HOST, self._ports[name])):
                return False
        with grpc.insecure_channel(self.address_of(name)) as channel:
            try:
                answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=_CALL_SECONDS)
            except grpc.RpcError:
                return False
        return bool(answer.status == HealthCheckResponse.SERVING)

    @contextlib.contextmanager
    def changed(self, name: str, **settings: str) -> Iterator[None]:
        """Run a process with other settings while the context lasts; both ways it is started again."""
        process = self.processes[name]
        former = process.settings
        try:
            process.settings = {**former, **settings}
            self.restart(name)
            yield
        finally:
            process.settings = former
            self.restart(name)

    def wait_ready(self) -> None:
        """Wait until every process is healthy, every node registered, and the gateway serves.

        Raises:
            AssertionError: If that takes longer than READY_SECONDS, or a process has ended.
        """
        for name in self.processes:
            self.wait_until(lambda name=name: self.is_serving(name), f"{name} is healthy")  # type: ignore[misc]
        self.wait_until(self._are_all_registered, "all nodes are registered")
        self.wait_until(lambda: _get_status(self.http_address, "/ready") == 200, "the gateway is ready")

    def wait_idle(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Wait until no node holds a request and every KV block can be allocated.

        Raises:
            AssertionError: If that takes longer: a request or a block has leaked.
        """

        def are_idle() -> bool:
            states = self.nodes().values()
            return bool(states) and all(is_idle(state) for state in states)

        self.wait_until(are_idle, "every block is free", timeout_seconds)

    def wait_until(self, is_true: Callable[[], object], what: str, timeout_seconds: float = READY_SECONDS) -> None:
        """Return when a question about the processes is answered with yes.

        Args:
            is_true: The question, asked again and again.
            what: The state waited for, for the error's message.
            timeout_seconds: Longest wait.

        Raises:
            AssertionError: If that takes longer, or a process has ended that the test did not signal.
        """
        deadline = time.monotonic() + timeout_seconds
        while not is_true():
            ended = [name for name, process in self.processes.items() if process.exit_status is not None]
            assert self._signalled.issuperset(ended), f"{ended} ended before {what}"
            assert time.monotonic() < deadline, f"not within {timeout_seconds:g} s: {what}"
            time.sleep(_POLL_SECONDS)

    def _are_all_registered(self) -> bool:
        states = self.nodes()
        return all(
            name in states and states[name].node.epoch > self.processes[name].started_ns for name in self.node_names
        )

    def _explain(self, error: BaseException) -> None:
        for name, tail in self.log_tails().items():
            error.add_note(f"--- {name}\n{tail}")


def is_idle(state: NodeState) -> bool:
    """Return whether a node reports no request, and all blocks as free or merely cached."""
    load = state.load
    has_requests = load.running_request_count or load.waiting_request_count
    return not has_requests and load.free_block_count == state.node.block_count


def _get_status(address: tuple[str, int], path: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=_CALL_SECONDS)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()
