"""The door of `baton up` to other machines: closed until somebody is invited, and then open by mutual TLS alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from agent.programs import run
from baton.agent.code_entry import Applicant, token_for
from baton.agent.joining import Joiner
from baton.agent.membership import Membership
from baton.internal.v1 import join_service_pb2 as messages
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.internal.v1.join_service_pb2_grpc import JoinServiceStub
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.router.server import running_router
from baton.router.settings import RouterSettings
from baton.rpc.channel import open_channel
from baton.security.join_code import parse_code
from baton.security.tls import TlsIdentity, secured_by
from router.samples import MAC, description_to_proto
from system.plan import free_ports

LAN = "127.0.0.2"
"""Stands for an address of this machine on a network; Linux has all of 127/8, and is told that this is none of it."""


@pytest.fixture(autouse=True)
def _other_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("baton.security.tls", "baton.router.servicer", "baton.router.proto"):
        monkeypatch.setattr(f"{module}.is_loopback", lambda host: host == "127.0.0.1")
    monkeypatch.setattr("baton.router.invitations.IPv4Address", _Address)
    monkeypatch.setattr("baton.router.join_verification.announced", lambda *_: nullcontext())


class _Address:
    def __init__(self, text: str) -> None:
        self.is_loopback = text == "127.0.0.1"


@asynccontextmanager
async def routing(folder: Path) -> AsyncIterator[str]:
    """Run a router as `baton up` does; yield its address on loopback."""
    (folder / "assignments.toml").write_text('[[node]]\nrole = "worker"\nmodel_dir = "demo"\n')
    ports = free_ports(["router", "join"])
    settings = RouterSettings(port=ports["router"], join_port=ports["join"], tls_lan_dir=folder)
    with secured_by(settings.tls_identity()):
        async with running_router(settings):
            yield f"127.0.0.1:{ports['router']}"


async def invited(address: str, host: str) -> messages.InviteResponse:
    """Return a code."""
    async with open_channel(address) as channel:
        request = messages.InviteRequest(address=host)
        return await JoinServiceStub(channel).Invite(request, timeout=30)  # type: ignore[no-untyped-call]


async def joined(folder: Path, answer: messages.InviteResponse, node_id: str) -> TlsIdentity:
    """Return the identity of a machine that joins by a code."""
    applicant = Applicant(node_id, "127.0.0.1", free_ports(["worker"])["worker"])
    token = await token_for(parse_code(answer.code), applicant, answer.address)

    async def find() -> str:
        return answer.address

    await Joiner(token, node_id, Membership(folder, "baton"), find).ask()
    return Membership(folder, "baton").identity


async def registered(
    address: str, node: node_pb2.NodeDescription
) -> AsyncIterator[router_service_pb2.RegisterResponse]:
    """Register a node, and yield what the router tells it."""
    async with open_channel(address) as channel:
        call = RouterServiceStub(channel).Register(timeout=30, wait_for_ready=True)  # type: ignore[no-untyped-call]
        await call.write(router_service_pb2.RegisterRequest(node=node))
        while (answer := await call.read()) is not grpc.aio.EOF:
            yield answer


def test_nothing_listens_beyond_loopback_until_somebody_is_invited(tmp_path: Path) -> None:
    """Then the same port does there, for holders of a certificate alone, and loopback goes on without."""

    async def main() -> None:
        async with routing(tmp_path) as address:
            outside = address.replace("127.0.0.1", LAN)
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(LAN, int(address.rpartition(":")[2]))

            answer = await invited(address, LAN)
            identity = await joined(tmp_path / "mac", answer, "mac")

            assert await invited(address, "") != answer  # open it is; on loopback without TLS, as before
            with secured_by(identity):
                async with open_channel(outside) as channel:
                    stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
                    with pytest.raises(grpc.aio.AioRpcError, match="node mac may not call RouterService/ListNodes"):
                        await stub.ListNodes(router_service_pb2.ListNodesRequest(), wait_for_ready=True, timeout=30)
            credentials = grpc.ssl_channel_credentials(identity.ca_file.read_bytes())
            options = (("grpc.ssl_target_name_override", "baton"),)
            async with grpc.aio.secure_channel(outside, credentials, options=options) as channel:
                stub = RouterServiceStub(channel)  # type: ignore[no-untyped-call]
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.ListNodes(router_service_pb2.ListNodesRequest(), timeout=30)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE

    run(main)


def test_machines_are_told_where_the_nodes_of_the_routers_machine_are(tmp_path: Path) -> None:
    """Which listen on loopback for each other, and at the door's address for those that have joined."""

    async def main() -> None:
        async with routing(tmp_path) as address:
            identity = await joined(tmp_path / "mac", await invited(address, LAN), "mac")
            here, there = _node("here", "127.0.0.1:7101"), _node("mac", "127.0.0.9:7101")
            told_here = registered(address, here)
            await anext(told_here)
            await anext(told_here)
            with secured_by(identity):
                told_there = registered(address.replace("127.0.0.1", LAN), there)
                await anext(told_there)
                seen_there = (await anext(told_there)).peers.nodes
            seen_here = (await anext(told_here)).peers.nodes
            await told_there.aclose()
            await told_here.aclose()

        assert [(peer.node_id, peer.address) for peer in seen_there] == [("here", f"{LAN}:7101")]
        assert [(peer.node_id, peer.address) for peer in seen_here] == [("mac", "127.0.0.9:7101")]

    run(main)


def test_a_door_opens_at_an_address_of_this_machine(tmp_path: Path) -> None:
    """The field is named otherwise."""

    async def main() -> None:
        async with routing(tmp_path) as address:
            with pytest.raises(grpc.aio.AioRpcError, match="address: no other machine reaches 127"):
                await invited(address, "127.0.0.1")

    run(main)


def test_a_member_cannot_lead_others_to_a_port_of_the_routers_machine(tmp_path: Path) -> None:
    """Connections to loopback there have no TLS, so a node of another machine is none."""

    async def main() -> None:
        async with routing(tmp_path) as address:
            identity = await joined(tmp_path / "mac", await invited(address, LAN), "mac")
            with secured_by(identity):
                told = registered(address.replace("127.0.0.1", LAN), _node("mac", "127.0.0.1:9"))
                with pytest.raises(grpc.aio.AioRpcError, match=r"127\.0\.0\.1:9 is no address by which other machines"):
                    await anext(told)

    run(main)


def _node(node_id: str, address: str) -> node_pb2.NodeDescription:
    return description_to_proto(replace(MAC, node_id=node_id, address=address, fast_address=""))
