"""Questions of the command line to a router."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from baton.cli.cluster.router_call import CALL_SECONDS, ask_router
from baton.errors import ConfigurationError, UnavailableError
from baton.internal.v1.router_service_pb2 import ListNodesRequest, ListNodesResponse
from baton.internal.v1.router_service_pb2_grpc import RouterServiceStub
from baton.router.server import running_router
from baton.router.settings import RouterSettings
from baton.security.tls import TlsIdentity, secured_by


async def _list_nodes(stub: RouterServiceStub) -> ListNodesResponse:
    answer: ListNodesResponse = await stub.ListNodes(ListNodesRequest(), timeout=CALL_SECONDS)
    return answer


def test_a_router_with_tls_is_asked_with_the_files_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them there is no answer; with them `baton nodes` and `baton plan` work as ever."""
    who = _identity(tmp_path)
    with _router(who) as address:
        with pytest.raises(UnavailableError, match=address):
            ask_router(address, _list_nodes)
        for name, path in {"CERT": who.cert_file, "KEY": who.key_file, "CA": who.ca_file}.items():
            monkeypatch.setenv(f"BATON_TLS_{name}_FILE", str(path))

        assert list(ask_router(address, _list_nodes).nodes) == []


def test_half_of_the_files_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names what is missing."""
    monkeypatch.setenv("BATON_TLS_CERT_FILE", str(_identity(tmp_path).cert_file))

    with pytest.raises(ConfigurationError, match="tls_key_file, tls_ca_file missing"):
        ask_router("127.0.0.1:1", _list_nodes)


def test_in_a_pod_it_says_what_to_look_at_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody runs `baton up` in a cluster."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")

    with pytest.raises(UnavailableError, match=r"router at 127.0.0.1:1: .*kubectl get pods,networkpolicies"):
        ask_router("127.0.0.1:1", _list_nodes)


def _identity(folder: Path) -> TlsIdentity:
    authority = trustme.CA()
    certificate = authority.issue_cert("baton")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "tls.pem")
    authority.cert_pem.write_to_path(folder / "ca.crt")
    return TlsIdentity(folder / "tls.pem", folder / "tls.pem", folder / "ca.crt", "baton")


@contextmanager
def _router(who: TlsIdentity) -> Iterator[str]:
    """Run a router in a thread, as the command line has an event loop of its own."""
    ports: list[int] = []
    is_started, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def run() -> None:
        async with running_router(RouterSettings(port=0, drain_seconds=0.0)) as server:
            ports.append(server.port)
            is_started.set()
            await stop.wait()

    def serve() -> None:
        with secured_by(who):
            loop.run_until_complete(run())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert is_started.wait(20)
    try:
        yield f"127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
