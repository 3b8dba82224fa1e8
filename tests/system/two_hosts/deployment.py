"""A deployment on two hosts, with TLS: gateway, router and a decode node here, a prefill node there, both by agents."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import grpc

from baton.internal.v1 import agent_service_pb2, agent_service_pb2_grpc, node_pb2, router_service_pb2
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from bench.links.network import FAR_ADDRESS, NEAR_ADDRESS, Network

MODEL = "model"
"""Served name."""
ROUTER = f"{NEAR_ADDRESS}:18950"
HTTP_PORT = 18956
_CACHE_INDEX = f"{NEAR_ADDRESS}:18951"
_JOIN_PORT = 18953
_TIMEOUT_SECONDS = 300.0

ValueT = TypeVar("ValueT")


class Slept(NamedTuple):
    """A host that slept."""

    stopped_seconds: float
    """For how long its processes stood still."""
    status: agent_service_pb2.GetStatusResponse
    """What its agent says afterwards."""


class Deployment:
    """Its processes and files. Made by `two_hosts`.

    Args:
        folder: For certificates, logs and the agents' state.
        link: To the far host.
        model: Folder of the model.
    """

    def __init__(self, folder: Path, network: Network, model: Path) -> None:
        self._folder = folder
        self._network = network
        self._model = model
        self._processes: list[subprocess.Popen[bytes]] = []
        self._far_processes: list[subprocess.Popen[bytes]] = []
        self.cli("authority", "create", str(folder / "deployment"))
        self.token = self.cli("authority", "token", str(folder / "deployment"), "--machines=2").strip()

    def cli(self, *arguments: str, is_far: bool = False, status: int = 0) -> str:
        """Run a command of `baton` to its end, as a member of the deployment; return what it printed.

        Raises:
            RuntimeError: If it ends with another status.
        """
        command = self._command(arguments, is_far=is_far)
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, env=self._environment(), check=False
        )
        if done.returncode != status:
            raise RuntimeError(f"baton {arguments[0]} ended with status {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout + done.stderr

    def start(self) -> None:
        """Start router, cache index and gateway here, and an agent on either host."""
        (self._folder / "assignments.toml").write_text(
            f'[[node]]\nnode_id = "far-*"\nrole = "prefill"\nengine = "torch"\nfast_port = 18961\n{self._common()}\n'
            f'[[node]]\nnode_id = "near-*"\nrole = "decode"\nengine = "mlx"\n{self._common()}\n'
        )
        files = self._folder / "deployment"
        tls = (f"--tls-cert-file={files}/tls.crt", f"--tls-key-file={files}/tls.key", f"--tls-ca-file={files}/ca.crt")
        here = f"--host={NEAR_ADDRESS}"
        join = (
            f"--join-port={_JOIN_PORT}",
            f"--join-secret-file={files}/join.secret",
            f"--join-authority-key-file={files}/ca.key",
            f"--join-assignments-file={self._folder}/assignments.toml",
            f"--announce-address={NEAR_ADDRESS}",
        )
        self._begin("serve", "cache-index", here, "--port=18951", *tls)
        index = f"--cache-index-address={_CACHE_INDEX}"
        self._begin("serve", "router", here, "--port=18950", index, "--prefill-policy=remote", *tls, *join)
        model = (f"--model-dir={self._model}", f"--model-name={MODEL}", f"--router-address={ROUTER}")
        http = (f"--http-host={NEAR_ADDRESS}", f"--http-port={HTTP_PORT}", f"--grpc-host={NEAR_ADDRESS}", "--insecure")
        self._begin("serve", "gateway", *model, *http, "--grpc-port=18957", *tls)
        self._begin(*self._agent("near-1", NEAR_ADDRESS, self.token), f"--join-address={NEAR_ADDRESS}:{_JOIN_PORT}")
        self._begin(*self._agent("far-1", FAR_ADDRESS, self.token), is_far=True)

    def join_with(self, token: str) -> str:
        """Return what an agent on the far host says that a router refuses."""
        return self.cli(*self._agent("far-2", FAR_ADDRESS, token, port=18970), is_far=True, status=1)

    def nodes(self) -> dict[str, router_service_pb2.NodeState]:
        """Return the router's nodes by id."""
        with self._channel(ROUTER) as channel:
            stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.ListNodes(router_service_pb2.ListNodesRequest(), wait_for_ready=True, timeout=30)
            return {state.node.node_id: state for state in answer.nodes}

    def transfer_seconds(self, num_prompt_tokens: int) -> float:
        """Return what the router expects the KV of a prompt to take on the link."""
        request = router_service_pb2.PlaceRequest(
            request_id="two-hosts",
            model_id=MODEL,
            prompt_token_count=num_prompt_tokens,
            max_token_count=16,
            is_dry_run=True,
        )
        with self._channel(ROUTER) as channel:
            stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
            return float(stub.Place(request, timeout=30).placement.estimate.transfer_seconds)

    def far_status(self) -> agent_service_pb2.GetStatusResponse:
        """Return the status of the far host's agent."""
        with self._channel(f"{FAR_ADDRESS}:18962") as channel:
            stub = agent_service_pb2_grpc.AgentServiceStub(channel)  # type: ignore[no-untyped-call]
            status: agent_service_pb2.GetStatusResponse = stub.GetStatus(
                agent_service_pb2.GetStatusRequest(), timeout=30
            )
            return status

    def kill_far_worker(self) -> int:
        """Kill the far host's worker with SIGKILL; return its process id."""
        process_id = self.far_status().worker_process_id
        os.kill(process_id, signal.SIGKILL)  # a network namespace has the processes of this machine
        return int(process_id)

    def sleep_far(self, seconds: float) -> Slept:
        """Stop agent and worker of the far host for a time, as a sleep does, and wait until the node is back."""
        stopped = [self._far_agent().pid, self.far_status().worker_process_id]
        began = time.monotonic()
        for process_id in stopped:
            os.kill(process_id, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            for process_id in stopped:
                os.kill(process_id, signal.SIGCONT)
        stopped_seconds = time.monotonic() - began

        def look() -> agent_service_pb2.GetStatusResponse | None:
            status = self.far_status()
            return status if status.sleep_count and "far-1" in self.nodes() else None

        return Slept(stopped_seconds, self.wait_for(look, "a node that is back after a sleep"))

    def measured_link(self, num_measurements: int) -> node_pb2.LinkMeasurement:
        """Return the link from the far node as the router has it once it has been measured so often.

        The decode node measures it anew for every process of the far node.
        """

        def look() -> node_pb2.LinkMeasurement | None:
            if self.log_of("near-1").count(" link_measured ") < num_measurements:
                return None
            nodes = self.nodes()
            links = [link for link in nodes["near-1"].links if "far-1" in nodes and link.from_node_id == "far-1"]
            return links[0] if links else None

        return self.wait_for(look, "a measured link")

    def wait_for(self, look: Callable[[], ValueT | None], what: str) -> ValueT:
        """Return what `look` finds as soon as it finds something.

        Raises:
            TimeoutError: If it does not in time; the message has the ends of the logs.
        """
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                found = look()
            except grpc.RpcError:
                found = None
            if found is not None:
                return found
            time.sleep(0.1)
        tails = "\n".join(path.read_text()[-1500:] for path in sorted(self._folder.glob("*.log")))
        raise TimeoutError(f"{what}: not within {_TIMEOUT_SECONDS} s\n{tails}")

    def log_of(self, node_id: str) -> str:
        """Return the log of a node's agent."""
        (path,) = (path for path in self._folder.glob("*.log") if node_id in path.name)
        return path.read_text()

    def stop(self) -> None:
        """End all processes."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _far_agent(self) -> subprocess.Popen[bytes]:
        (agent,) = self._far_processes
        return agent

    def _agent(self, node_id: str, host: str, token: str, *, port: int = 18960) -> tuple[str, ...]:
        state = self._folder / f"state-{node_id}"
        own = (f"--host={host}", f"--worker-port={port}", f"--port={port + 2}", f"--worker-node-id={node_id}")
        return ("agent", f"--join-token={token}", *own, f"--state-dir={state}")

    def _common(self) -> str:
        sizes = "num_threads = 1\nnum_blocks = 512\ndrain_seconds = 1.0"
        return f'model_dir = "{self._model}"\nmodel_name = "{MODEL}"\n{sizes}'

    def _begin(self, *arguments: str, is_far: bool = False) -> None:
        name = re.sub(r"[^a-z0-9]+", "-", " ".join(each for each in arguments[:2] if not each.startswith("--")))
        node_id = next((each.partition("=")[2] for each in arguments if each.startswith("--worker-node-id")), "")
        with (self._folder / f"{name}{node_id}.log").open("wb") as log:
            command = self._command(arguments, is_far=is_far)
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment())
        self._processes.append(process)
        if is_far:
            self._far_processes.append(process)

    def _command(self, arguments: Sequence[str], *, is_far: bool) -> list[str]:
        command = [sys.executable, "-m", "baton.cli", *arguments]
        return self._network.command(int(is_far), command)

    def _environment(self) -> dict[str, str]:
        files = self._folder / "deployment"
        own = {"CERT": files / "tls.crt", "KEY": files / "tls.key", "CA": files / "ca.crt"}
        tls = {f"BATON_TLS_{name}_FILE": str(path) for name, path in own.items() if path.exists()}
        return {**os.environ, "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0", "COLUMNS": "200", **tls}

    def _channel(self, address: str) -> grpc.Channel:
        files = self._folder / "deployment"
        credentials = grpc.ssl_channel_credentials(
            (files / "ca.crt").read_bytes(), (files / "tls.key").read_bytes(), (files / "tls.crt").read_bytes()
        )
        return grpc.secure_channel(address, credentials, options=(("grpc.ssl_target_name_override", "baton"),))


@contextmanager
def two_hosts(folder: Path, network: Network, model: Path) -> Iterator[Deployment]:
    """Yield a deployment whose processes have not been started; end them at the end."""
    deployment = Deployment(folder, network, model)
    try:
        yield deployment
    finally:
        deployment.stop()
