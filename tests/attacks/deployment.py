"""A deployment that attacks are tried on: its authority, certificates of whom one likes, and real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc

from attacks.victims import IS_FORMER, TREE
from baton.agent.joining import Joiner
from baton.agent.membership import Membership
from baton.internal.v1.router_service_pb2 import ListNodesRequest, NodeState
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.rpc.channel import open_channel
from baton.security.authority import Authority, certificate_request, create_authority, create_key
from baton.security.join_token import JoinToken, create_pass, create_secret
from baton.security.tls import TlsIdentity, secured_by
from checkpoints import checkpoint
from system.plan import HOST, free_ports
from system.process import ServedProcess

READY_SECONDS = 200.0
CALL_SECONDS = 10.0
MODEL = "tiny"
_DAY = timedelta(days=1)


class Deployment:
    """Processes on this machine that demand certificates of each other; all end with the context.

    Args:
        folder: Where certificates and logs are.
        roles: Role of each process by name: "router", "cache-index", or that of a mock node, whose certificate bears
            its name.
    """

    def __init__(self, folder: Path, roles: Mapping[str, str]) -> None:
        self._folder = folder
        self.secret = create_secret()
        """Of which tokens are made."""
        self._authority: Authority = create_authority(datetime.now(UTC), _DAY)
        self._ports = free_ports(list(dict.fromkeys([*roles, "router", "cache-index", "join"])))
        self.operator = self.certificate("baton")
        """Who all processes believe: what `baton authority create` makes."""
        self.processes = {name: self._process(name, role) for name, role in roles.items()}

    def certificate(self, name: str) -> TlsIdentity:
        """Return a member whose certificate bears a name, as the deployment's authority signs it."""
        folder, key = self._folder / name, create_key()
        folder.mkdir(exist_ok=True)
        who = TlsIdentity(folder / "tls.crt", folder / "tls.key", folder / "ca.crt", "baton")
        signed = self._authority.sign(
            certificate_request(key, name), node_id=name, server_name="baton", now=datetime.now(UTC), lifetime=_DAY
        )
        for file, content in ((who.cert_file, signed), (who.key_file, key), (who.ca_file, self._authority.certificate)):
            file.write_bytes(content)
        return who

    def address(self, name: str) -> str:
        """Return host:port of a process."""
        return f"{HOST}:{self._ports[name]}"

    def __enter__(self) -> Deployment:
        for process in self.processes.values():
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()

    def attack(
        self, who: TlsIdentity | None, name: str, act: Callable[[grpc.aio.Channel], Awaitable[object]]
    ) -> object:
        """Have somebody do something over a channel to a process; return what that gives, or the code of its error."""

        async def run() -> object:
            with secured_by(who):
                channel = open_channel(self.address(name))
            async with channel:
                return await asyncio.wait_for(act(channel), READY_SECONDS)

        try:
            return asyncio.run(run())
        except grpc.aio.AioRpcError as error:
            return error.code()

    def nodes(self) -> Mapping[str, NodeState]:
        """Return the registered nodes by name; empty if the router does not answer."""

        async def ask(channel: grpc.aio.Channel) -> Mapping[str, NodeState]:
            answer = await RouterServiceStub(channel).ListNodes(ListNodesRequest(), timeout=CALL_SECONDS)  # type: ignore[no-untyped-call]
            return {state.node.node_id: state for state in answer.nodes}

        answer = self.attack(self.operator, "router", ask)
        return answer if isinstance(answer, dict) else {}

    def wait_for_node(self, name: str) -> NodeState:
        """Return what the router knows of a node, once it does.

        Raises:
            AssertionError: If that takes too long or a process ends.
        """
        deadline = time.monotonic() + READY_SECONDS
        while name not in (nodes := self.nodes()):
            ended = [each for each in self.processes.values() if each.exit_status is not None]
            assert not ended, {each.name: (each.exit_status, each.log_tail()) for each in ended}
            assert time.monotonic() < deadline, f"{name} is not registered: {self.processes[name].log_tail()}"
            time.sleep(0.05)
        return nodes[name]

    def token(self, ends_at: datetime, num_machines: int = 1) -> JoinToken:
        """Return what `baton authority token` prints."""
        shown = self.secret if IS_FORMER else create_pass(self.secret, ends_at=ends_at, num_machines=num_machines)
        return JoinToken(shown, self._authority.certificate)

    def joiner(self, node_id: str, token: JoinToken) -> Joiner:
        """Return what joins for a machine."""

        async def find() -> str:
            return self.address("join")

        return Joiner(token, node_id, Membership(self._folder / f"machine-{node_id}", "baton"), find)

    def _join_settings(self) -> dict[str, str]:
        files = {
            "join_secret_file": self.secret.encode(),
            "join_authority_key_file": self._authority.key,
            "join_assignments_file": b'[[node]]\nrole = "decode"\nengine = "mock"\n',
        }
        for name, content in files.items():
            (self._folder / name).write_bytes(content)
        return {name: str(self._folder / name) for name in files} | {"join_port": str(self._ports["join"])}

    def _process(self, name: str, role: str) -> ServedProcess:
        role = "decode" if IS_FORMER and role == "worker" else role
        who = self.operator if role in ("router", "cache-index") else self.certificate(name)
        files = {"tls_cert_file": who.cert_file, "tls_key_file": who.key_file, "tls_ca_file": who.ca_file}
        settings = {file: str(path) for file, path in files.items()}
        settings |= {"host": HOST, "port": str(self._ports[name])}
        if role != "cache-index":
            settings["cache_index_address"] = self.address("cache-index")
        if role == "router":
            settings |= self._join_settings()
        if role not in ("router", "cache-index"):
            settings |= {"node_id": name, "engine": "mock", "router_address": self.address("router")}
            settings |= {"model_dir": str(checkpoint("llama")), "model_name": MODEL}
        variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        variables |= {"PYTHONPATH": f"{TREE}/services:{TREE}"} if TREE else {}
        return ServedProcess(name, role, settings, variables, self._folder / f"{name}.log")
