"""Every cell of the table of who may call what, over real connections; and what callers say of nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace

import grpc
import pytest
import trustme

from baton.errors import ForbiddenError
from baton.grpc_sockets.headers import Code
from baton.grpc_sockets.server_connection import ServerCall
from baton.internal.v1 import (
    agent_service_pb2,
    block_service_pb2,
    cache_index_service_pb2,
    decode_service_pb2,
    join_service_pb2,
    model_service_pb2,
    prefill_service_pb2,
    router_service_pb2,
    weight_service_pb2,
    worker_service_pb2,
)
from baton.kv_transport.kv_services import PREFILL_PATH, PROBE_PATH, FastServer, ReceivedRequest
from baton.rpc.channel import open_channel
from baton.rpc.server import GrpcServer, PublicPort
from baton.security.access import METHODS, RESERVED_NAMES, Caller, Party, caller_of, parties_of
from baton.security.tls import TlsIdentity, secured_by
from baton.v1 import generation_service_pb2
from grpc_sockets.peers import Listener, connected
from security.identities import identity

TIMEOUT_SECONDS = 60.0
_SERVICES = {
    name: service
    for module in (
        agent_service_pb2,
        block_service_pb2,
        cache_index_service_pb2,
        decode_service_pb2,
        join_service_pb2,
        model_service_pb2,
        prefill_service_pb2,
        router_service_pb2,
        weight_service_pb2,
        worker_service_pb2,
        generation_service_pb2,
    )
    for name, service in module.DESCRIPTOR.services_by_name.items()
}
MAY_CALL = {
    "AgentService/GetStatus": "admin node",
    "BlockService/PullBlocks": "node",
    "BlockService/ProbeLink": "node",
    "CacheIndexService/Publish": "node",
    "CacheIndexService/Lookup": "router",
    "DecodeService/Generate": "gateway",
    "DecodeService/Serve": "gateway",
    "JoinService/Join": "joiner",
    "JoinService/Enter": "joiner",
    "JoinService/Invite": "admin gateway",
    "ModelService/ListModels": "admin gateway",
    "ModelService/ChangeModel": "admin gateway",
    "ModelService/Supervise": "node",
    "PrefillService/Prefill": "node",
    "PrefillService/ProbeLink": "admin node",
    "RouterService/Register": "node",
    "RouterService/Place": "admin gateway",
    "RouterService/ListNodes": "admin gateway",
    "RouterService/Explain": "admin gateway",
    "WeightService/GetManifest": "admin node",
    "WeightService/FetchFile": "admin node",
    "WorkerService/Pause": "admin node",
    "WorkerService/Resume": "admin node",
    "WorkerService/FetchTokenizer": "gateway",
    "GenerationService/Generate": "client",
    "GenerationService/ListModels": "client",
}
"""Written down a second time, on purpose."""
_OTHERS = {
    "grpc.health.v1.Health/List": {party.value for party in Party},
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": {"admin", "client"},
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {"admin", "client"},
}
EXPECTED: Mapping[str, set[str]] = _OTHERS | {
    f"{_SERVICES[service].full_name}/{method}": set(MAY_CALL[f"{service}/{method}"].split())
    for service, method in (name.split("/") for name in MAY_CALL)
}


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, TlsIdentity]:
    """Return a certificate of each party that has one, and of the deployment itself."""
    folder, authority = tmp_path_factory.mktemp("members"), trustme.CA()
    names = {"deployment": "baton", "nameless": None, "server": "llm.example", "node": "mac-1"}
    names |= {name: name for name in ("gateway", "router", "cache-index", "admin")}
    return {party: identity(folder / party, authority, common_name=name) for party, name in names.items()}


def server_for(party: str) -> GrpcServer:
    """Return a server of the kind that a party connects to, with every method of every service."""
    server = GrpcServer(
        "127.0.0.1:0", public=PublicPort() if party == "client" else None, demands_certificate=party != "joiner"
    )
    for service in _SERVICES.values():
        handlers = {method.name: grpc.unary_unary_rpc_method_handler(_answer) for method in service.methods}
        generic = grpc.method_handlers_generic_handler(service.full_name, handlers)
        server.add(service.full_name, lambda target, generic=generic: target.add_generic_rpc_handlers((generic,)))
    return server


async def _answer(request: bytes, context: object) -> bytes:
    return b""


def channel_of(party: str, address: str, members: Mapping[str, TlsIdentity]) -> grpc.aio.Channel:
    """Return a party's channel to the server that is its to ask."""
    if party == "joiner":
        credentials = grpc.ssl_channel_credentials(members["deployment"].ca_file.read_bytes())
        return grpc.aio.secure_channel(address, credentials, (("grpc.ssl_target_name_override", "baton"),))
    with secured_by(None if party == "client" else members[party]):
        return open_channel(address)


async def allowed_to(party: str, members: Mapping[str, TlsIdentity], server_name: str = "baton") -> set[str]:
    """Return the methods that a server lets a party call."""
    with secured_by(replace(members["deployment"], server_name=server_name)):
        server = server_for(party)
    codes = dict[str, grpc.StatusCode]()
    try:
        address = f"127.0.0.1:{await server.start()}"
        async with channel_of(party, address, members) as channel:
            for path in EXPECTED:
                call = channel.unary_unary(f"/{path}")(b"", timeout=TIMEOUT_SECONDS)
                codes[path] = await call.code()
    finally:
        await server.drain(0)
    assert set(codes.values()) <= {grpc.StatusCode.OK, grpc.StatusCode.PERMISSION_DENIED}, codes
    return {path for path, code in codes.items() if code is grpc.StatusCode.OK}


@pytest.mark.parametrize("party", [party.value for party in Party])
def test_a_party_may_call_what_the_table_says_and_nothing_else(party: str, members: Mapping[str, TlsIdentity]) -> None:
    """Over gRPC, each method on each kind of port."""
    allowed = asyncio.run(allowed_to(party, members))

    assert allowed == {path for path, parties in EXPECTED.items() if party in parties}


@pytest.mark.parametrize("party", ["deployment", "nameless"])
def test_a_process_whose_certificate_is_shared_speaks_for_any(party: str, members: Mapping[str, TlsIdentity]) -> None:
    """Where an operator gives all processes one certificate, it tells nothing of them."""
    assert asyncio.run(allowed_to(party, members)) == set(EXPECTED)


def test_the_table_has_every_method() -> None:
    """One that is forgotten could be called by nobody."""
    methods = {f"{service.full_name}/{method.name}" for service in _SERVICES.values() for method in service.methods}

    assert {path for path in methods if not parties_of(path)} == set()
    assert {f"{_SERVICES['GenerationService'].full_name}/*", *methods} >= {
        path for path in METHODS if path.startswith("baton.")
    }


@pytest.mark.parametrize("name", ["baton", "gateway", "router", "cache-index", "admin", "node", "client"])
def test_a_name_by_which_more_is_allowed_is_no_node_s(name: str) -> None:
    """A machine that joined by it would be taken for a part of the deployment."""
    assert name in RESERVED_NAMES


def test_a_method_that_is_not_in_the_table_is_nobodys() -> None:
    """What is added later is closed until somebody opens it."""
    with pytest.raises(ForbiddenError):
        Caller(Party.ADMIN).check_may_call("/baton.internal.v1.RouterService/Forget")


def _answer_once(request: ReceivedRequest, call: ServerCall) -> None:
    """Answer once, computing nothing."""
    call.send(b"")


@pytest.fixture
def fast_port(members: Mapping[str, TlsIdentity]) -> Iterator[int]:
    """Run a fast path and yield its port."""
    with secured_by(members["node"]):
        server = FastServer("127.0.0.1", 0, _answer_once)
    yield server.start()
    asyncio.run(server.drain(0))


@pytest.mark.parametrize("party", ["deployment", "node", "gateway", "router", "cache-index", "admin"])
def test_the_fast_path_knows_the_same_table(party: str, fast_port: int, members: Mapping[str, TlsIdentity]) -> None:
    """Its handshake says who asks for KV, or how fast the link is."""
    allowed = {PREFILL_PATH: ("deployment", "node"), PROBE_PATH: ("deployment", "node", "admin")}
    with connected(fast_port, tls=members[party].client_context(), server_name="baton") as connection:
        for path, parties in allowed.items():
            listener = Listener()
            connection.call(path, b"", listener)
            assert listener.over.wait(TIMEOUT_SECONDS)

            assert listener.status is not None
            assert listener.status.code is (Code.OK if party in parties else Code.PERMISSION_DENIED)


def test_a_certificate_with_the_servers_name_is_a_shared_one(members: Mapping[str, TlsIdentity]) -> None:
    """As authorities that are not Baton's write it; beyond that, a name that is a party's stays that party's."""
    server_name = "llm.example"

    assert asyncio.run(allowed_to("server", members, server_name)) == set(EXPECTED)
    assert caller_of([server_name]).party is Party.NODE
    assert caller_of(["gateway"], server_name="gateway").party is Party.GATEWAY


def test_a_node_speaks_for_itself_alone() -> None:
    """Those who are no nodes are bound by the table."""
    node = caller_of(["mac-1"])
    node.check_speaks_for("mac-1")
    node.check_speaks_for("mac-1--llama")  # a further worker of the machine
    Caller(None).check_speaks_for("mac-1")

    with pytest.raises(ForbiddenError, match="node mac-1 does not speak for node mac-2"):
        node.check_speaks_for("mac-2")


def test_a_certificate_of_several_names_is_nobodys() -> None:
    """Which of them would count is not for the caller to choose."""
    with pytest.raises(ForbiddenError):
        caller_of(["mac-1", "baton"])
