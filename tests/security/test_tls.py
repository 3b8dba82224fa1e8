"""Mutual TLS between servers and channels."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.config.settings import load_settings
from baton.errors import ConfigurationError
from baton.internal.v1 import router_service_pb2
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.router.server import running_router
from baton.router.settings import RouterSettings
from baton.rpc.channel import open_channel
from baton.rpc.loop_channel import LoopChannel
from baton.rpc.server import GrpcServer, PublicPort
from baton.security import tls
from baton.security.tls import ServerTlsSettings, TlsIdentity, current_identity, identity_towards, secured_by
from security.identities import identity
from system.plan import free_ports

TIMEOUT_SECONDS = 60.0
SERVING = health_pb2.HealthCheckResponse.SERVING


async def ask(address: str, who: TlsIdentity | None) -> int:
    """Return the health that a server tells a client.

    Raises:
        grpc.aio.AioRpcError: If it tells none.
    """
    with secured_by(who):
        async with open_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
            return int(answer.status)


@asynccontextmanager
async def serving(who: TlsIdentity | None, *, is_public: bool = False) -> AsyncIterator[str]:
    """Run a server, and yield its address."""
    with secured_by(who):
        server = GrpcServer("127.0.0.1:0", public=PublicPort() if is_public else None)
    try:
        yield f"127.0.0.1:{await server.start()}"
    finally:
        await server.drain(0.0)


def test_those_of_one_deployment_understand_each_other(tmp_path: Path) -> None:
    """A client whose certificate comes from the same authority is served, by whatever address it came."""
    authority = trustme.CA()

    async def run() -> None:
        async with serving(identity(tmp_path / "server", authority)) as address:
            assert await ask(address, identity(tmp_path / "client", authority)) == SERVING

    asyncio.run(run())


def test_an_authority_that_another_has_signed_is_believed_and_not_its_own(tmp_path: Path) -> None:
    """As cert-manager makes one: by gRPC and by sockets, without the root, whose other certificates count nothing."""
    root = trustme.CA()
    authority = root.create_child_ca()
    members = [identity(tmp_path / name, authority) for name in ("server", "client")]
    stranger = identity(tmp_path / "stranger", root)
    for each in (*members, stranger):
        leaf, mark, _ = each.cert_file.read_bytes().partition(b"-----END CERTIFICATE-----\n")
        each.cert_file.write_bytes(leaf + mark)
        each.ca_file.write_bytes(authority.cert_pem.bytes())

    async def by_sockets(address: str) -> int:
        with secured_by(members[1]):
            async with LoopChannel(address) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
                return int(answer.status)

    async def run() -> None:
        async with serving(members[0]) as address:
            assert await ask(address, members[1]) == SERVING
            assert await by_sockets(address) == SERVING
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(address, stranger)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["no TLS", "another authority", "a client that believes another authority"])
def test_others_are_not_served(tmp_path: Path, kind: str) -> None:
    """Without a certificate of the deployment there is no connection, in neither direction."""
    authority, stranger = trustme.CA(), trustme.CA()
    client: TlsIdentity | None = None
    if kind != "no TLS":
        client = identity(tmp_path / "client", stranger)
    if kind == "another authority":
        client = TlsIdentity(client.cert_file, client.key_file, tmp_path / "server" / "ca.crt", "baton")  # type: ignore[union-attr]

    async def run() -> None:
        async with serving(identity(tmp_path / "server", authority)) as address:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await ask(address, client)

            assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE

    asyncio.run(run())


def test_a_server_of_another_name_is_not_believed(tmp_path: Path) -> None:
    """The authority may sign certificates for other purposes."""
    authority = trustme.CA()

    async def run() -> None:
        async with serving(identity(tmp_path / "server", authority, name="database")) as address:
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(address, identity(tmp_path / "client", authority))

    asyncio.run(run())


def test_a_certificate_that_is_replaced_is_taken_without_a_restart(tmp_path: Path) -> None:
    """New connections see the files as they are; files that cannot be read change nothing."""
    old, new = trustme.CA(), trustme.CA()

    async def run() -> None:
        async with serving(identity(tmp_path / "server", old)) as address:
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(address, identity(tmp_path / "client", new))
            identity(tmp_path / "server", new)

            assert await ask(address, identity(tmp_path / "client", new)) == SERVING

            (tmp_path / "server" / "tls.key").unlink()

            assert await ask(address, identity(tmp_path / "client", new)) == SERVING

    asyncio.run(run())


def test_a_public_server_has_no_tls_of_the_deployment(tmp_path: Path) -> None:
    """Clients of the public API have no certificate; whoever stands before it ends their TLS."""

    async def run() -> None:
        async with serving(identity(tmp_path / "server", trustme.CA()), is_public=True) as address:
            assert await ask(address, None) == SERVING

    asyncio.run(run())


def test_probes_without_a_certificate_learn_health_and_nothing_else(tmp_path: Path) -> None:
    """Kubernetes' gRPC probes know no TLS: they have a port of their own."""
    health_port = free_ports(["health"])["health"]
    who = identity(tmp_path / "router", trustme.CA(), health_port=health_port)

    async def run() -> None:
        with secured_by(who):
            router = running_router(RouterSettings(port=0, drain_seconds=0.0))
            async with router as server:
                assert await ask(f"127.0.0.1:{server.port}", who) == SERVING
                assert await ask(f"127.0.0.1:{health_port}", None) == SERVING
                with secured_by(None):
                    async with open_channel(f"127.0.0.1:{health_port}") as channel:
                        with pytest.raises(grpc.aio.AioRpcError) as refusal:
                            await RouterServiceStub(channel).ListNodes(
                                router_service_pb2.ListNodesRequest(), timeout=TIMEOUT_SECONDS
                            )

                assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(run())


def test_a_taken_health_port_is_named(tmp_path: Path) -> None:
    """Not the address of the service, which is free."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        health_port = holder.getsockname()[1]
        who = identity(tmp_path, trustme.CA(), health_port=health_port)
        with secured_by(who), pytest.raises(ConfigurationError, match=f"on 127.0.0.1:{health_port} for health"):
            asyncio.run(_start("127.0.0.1:0"))


async def _start(address: str) -> None:
    await GrpcServer(address).start()


def test_a_service_that_does_not_say_where_it_listens_is_not_taken_for_a_local_one() -> None:
    """Whoever forgets `host` is told."""
    with pytest.raises(ValueError, match="without a certificate"):
        ServerTlsSettings()


def test_who_a_process_is_ends_with_its_context(tmp_path: Path) -> None:
    """What is opened afterwards is as it was before: another service of the process may be somebody else."""
    who = identity(tmp_path, trustme.CA())

    with secured_by(who):
        with secured_by(None):
            assert current_identity() is None
        assert current_identity() == who
    assert current_identity() is None


def test_loopback_has_no_tls_where_servers_listen_beyond_it_as_well(tmp_path: Path) -> None:
    """Of `baton up`; all other connections have it, and all of a process that has no such file."""
    who = identity(tmp_path, trustme.CA())
    up = replace(who, lan_file=tmp_path / "address")

    with secured_by(up):
        found = [identity_towards(address) for address in ("127.0.0.1:8010", "[::1]:8010", "10.0.0.2:8010")]
    with secured_by(who):
        assert identity_towards("127.0.0.1:8010") == who

    assert found == [None, None, up]


def test_half_of_the_files_are_refused_by_name(tmp_path: Path) -> None:
    """A service with a certificate but no authorities would believe anybody."""
    (tmp_path / "tls.crt").write_text("")
    with pytest.raises(ConfigurationError, match="tls_key_file, tls_ca_file missing"):
        load_settings(RouterSettings, {"tls_cert_file": str(tmp_path / "tls.crt")})

    files = {name: str(tmp_path / "none") for name in ("tls_cert_file", "tls_key_file", "tls_ca_file")}
    with pytest.raises(ConfigurationError, match="tls_cert_file: no file"):
        load_settings(RouterSettings, files)


def test_without_files_there_is_no_identity() -> None:
    """TLS is off unless it is asked for."""
    assert load_settings(RouterSettings, {}).tls_identity() is None


def test_a_machine_without_a_cluster_opens_once_it_has_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are those of one folder; servers listen beyond loopback when its file names the address, not before."""
    monkeypatch.setattr(tls, "_LOOK_SECONDS", 0.01)
    who = load_settings(RouterSettings, {"tls_lan_dir": str(tmp_path)}).tls_identity()
    assert who is not None
    assert (who.cert_file, who.key_file, who.ca_file) == tuple(
        tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt")
    )

    async def run() -> str:
        opening = asyncio.create_task(who.opened())
        await asyncio.sleep(0.05)
        assert not opening.done()
        assert who.lan_host() == ""
        (tmp_path / "address").write_text("192.0.2.7")
        return await asyncio.wait_for(opening, TIMEOUT_SECONDS)

    assert asyncio.run(run()) == "192.0.2.7"
    assert TlsIdentity(who.cert_file, who.key_file, who.ca_file, "baton").lan_host() == ""


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Return whether both sides take each other, without a network."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(there, back, server_side=True),
        client.wrap_bio(back, there, server_hostname="baton"),
    ]
    for _ in range(8):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                try:
                    side.do_handshake()
                    side.read(1)  # a client learns of a refusal behind its own part
                except ssl.SSLError as error:
                    if not isinstance(error, ssl.SSLWantReadError):
                        return False
                    raise
    return True


@pytest.mark.parametrize("who", ["a member", "nobody", "a stranger"])
def test_a_server_on_sockets_demands_a_certificate_of_the_deployment(tmp_path: Path, who: str) -> None:
    """Before a byte of a request is read."""
    authority = trustme.CA()
    own = identity(tmp_path / "own", authority)
    client = identity(tmp_path / "client", authority if who == "a member" else trustme.CA())
    context = client.client_context()
    if who != "a member":
        if who == "nobody":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(own.ca_file)

    assert shake_hands(own.server_context(), context) is (who == "a member")
