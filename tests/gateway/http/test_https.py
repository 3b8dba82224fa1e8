"""TLS on the ports of REST and gRPC."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.errors import ConfigurationError
from baton.gateway.server import RunningGateway
from baton.gateway.settings import GatewaySettings
from baton.security.tls import PublicCertificate
from baton.v1.generation_service_pb2 import ListModelsRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
from gateway.fake_cluster import MODEL, FakeCluster, Loop
from gateway.http.raw_client import completion, exchange, post
from system.plan import free_ports


class Site(NamedTuple):
    """Files of a certificate, and the gateway that shows it."""

    cert_file: Path
    key_file: Path
    gateway: RunningGateway

    def replace(self, authority: trustme.CA) -> None:
        """Replace the certificate by one of an authority, as tools do that renew them."""
        _write(authority, self.cert_file, self.key_file)

    @contextmanager
    def connection(self, authority: trustme.CA) -> Iterator[http.client.HTTPSConnection]:
        """Yield a connection of a client that believes an authority."""
        context = ssl.create_default_context()
        authority.configure_trust(context)
        client = http.client.HTTPSConnection("127.0.0.1", self.gateway.http_port, timeout=20, context=context)
        with closing(client):
            client.connect()
            yield client

    def models(self, authority: trustme.CA, client: trustme.LeafCert | None = None) -> list[str]:
        """Return the models that gRPC lists on a new connection to a client that believes an authority.

        Raises:
            grpc.RpcError: If there is no connection.
        """
        key, chain = (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes()) if client else (None, None)
        credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), key, chain)
        options = (("grpc.use_local_subchannel_pool", 1),)
        with grpc.secure_channel(f"127.0.0.1:{self.gateway.grpc_port}", credentials, options) as channel:
            listed = GenerationServiceStub(channel).ListModels(ListModelsRequest(), timeout=20)  # type: ignore[no-untyped-call]
            return [model.name for model in listed.models]

    def status(self, authority: trustme.CA) -> int:
        """Return the status of a completion on a new connection."""
        with self.connection(authority) as client:
            return _status(client)


def _write(authority: trustme.CA, cert_file: Path, key_file: Path) -> None:
    issued = authority.issue_cert("127.0.0.1")
    for path, content in ((cert_file, issued.cert_chain_pems[0].bytes()), (key_file, issued.private_key_pem.bytes())):
        path.with_suffix(".new").write_bytes(content)
        path.with_suffix(".new").replace(path)


@pytest.fixture
def authority() -> trustme.CA:
    """Return an authority."""
    return trustme.CA()


@pytest.fixture
def site(loop: Loop, cluster: FakeCluster, authority: trustme.CA, tmp_path: Path) -> Iterator[Site]:
    """Run a gateway with a certificate."""
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    _write(authority, *files)
    with loop.running(
        cluster, https_cert_file=files[0], https_key_file=files[1], header_timeout_seconds=0.3
    ) as gateway:
        yield Site(*files, gateway)


def _status(connection: http.client.HTTPSConnection, **fields: object) -> int:
    connection.request("POST", "/v1/completions", completion(**fields), {"content-type": "application/json"})
    response = connection.getresponse()
    response.read()
    return response.status


def test_a_client_that_believes_the_authority_is_served(site: Site, authority: trustme.CA) -> None:
    """Answers and streams, on one connection; by HTTP/1.1 and a current TLS. One certificate serves gRPC as well."""
    with site.connection(authority) as client:
        statuses = [_status(client), _status(client, stream=True), _status(client)]

        assert statuses == [200, 200, 200]
        assert isinstance(client.sock, ssl.SSLSocket)
        assert client.sock.version() == "TLSv1.3"
    assert site.models(authority) == [MODEL]


def test_a_certificate_that_is_replaced_is_shown_to_new_connections(site: Site, authority: trustme.CA) -> None:
    """Nobody is cut off, and whoever believes the new authority alone is served."""
    other = trustme.CA()
    with site.connection(authority) as old:
        site.replace(other)

        assert [_status(old), site.status(other), site.models(other)] == [200, 200, [MODEL]]
    with pytest.raises(ssl.SSLCertVerificationError):
        site.status(authority)
    with pytest.raises(grpc.RpcError):
        site.models(authority)


def test_files_that_cannot_be_used_leave_the_certificate_as_it_was(site: Site, authority: trustme.CA) -> None:
    """As between the replacement of the certificate and that of its key, or while there is none."""
    site.cert_file.write_bytes(trustme.CA().issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
    assert (site.status(authority), site.models(authority)) == (200, [MODEL])

    site.key_file.unlink()
    assert (site.status(authority), site.models(authority)) == (200, [MODEL])


def test_a_client_that_would_rather_speak_http_2_is_answered_in_http_1(site: Site, authority: trustme.CA) -> None:
    """It learns that in the handshake: browsers offer both."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    address = ("127.0.0.1", site.gateway.http_port)
    with socket.create_connection(address, 20) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as tls:
        assert tls.selected_alpn_protocol() == "http/1.1"


def test_who_speaks_no_tls_is_let_go(site: Site, authority: trustme.CA) -> None:
    """Plain HTTP, or nothing at all within the time of a head; others are served."""
    assert b"HTTP" not in exchange(site.gateway, post("/v1/completions", completion()))
    with socket.create_connection(("127.0.0.1", site.gateway.http_port), timeout=20) as silent:
        assert silent.recv(1) == b""

    assert site.status(authority) == 200


def test_clients_show_a_certificate_where_authorities_are_named(
    loop: Loop, cluster: FakeCluster, authority: trustme.CA, tmp_path: Path
) -> None:
    """On both ports, of these authorities; probes of health need none."""
    cert_file, key_file, ca_file = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "clients.crt"
    _write(authority, cert_file, key_file)
    clients, health_port = trustme.CA(), free_ports(["health"])["health"]
    ca_file.write_bytes(clients.cert_pem.bytes())
    files = {"https_cert_file": cert_file, "https_key_file": key_file, "client_ca_file": ca_file}
    with loop.running(cluster, **files, health_port=health_port) as gateway:
        site = Site(cert_file, key_file, gateway)
        assert site.models(authority, clients.issue_cert("me")) == [MODEL]
        for stranger in (None, trustme.CA().issue_cert("me")):
            with pytest.raises(grpc.RpcError):
                site.models(authority, stranger)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            site.status(authority)
        with grpc.insecure_channel(f"127.0.0.1:{health_port}") as channel:
            check = health_pb2.HealthCheckRequest(service="liveness")
            assert health_pb2_grpc.HealthStub(channel).Check(check, timeout=20).status == 1


@pytest.mark.parametrize("other", ["a certificate of its own", "none"])
def test_grpc_may_show_something_else(
    loop: Loop, cluster: FakeCluster, authority: trustme.CA, tmp_path: Path, other: str
) -> None:
    """Where it has another name, or whoever stands before it ends TLS."""
    files = {"https_cert_file": tmp_path / "tls.crt", "https_key_file": tmp_path / "tls.key"}
    own = {"grpc_cert_file": tmp_path / "grpc.crt", "grpc_key_file": tmp_path / "grpc.key"}
    others = trustme.CA()
    _write(authority, *files.values())
    _write(others, *own.values())
    settings = own if other != "none" else {"grpc_tls": False}
    with loop.running(cluster, **files, **settings) as gateway:
        site = Site(*files.values(), gateway)
        with pytest.raises(grpc.RpcError):
            site.models(authority)
        if other != "none":
            assert site.models(others) == [MODEL]
            return
        with grpc.insecure_channel(f"127.0.0.1:{gateway.grpc_port}") as channel:
            assert GenerationServiceStub(channel).ListModels(ListModelsRequest(), timeout=20).models  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"grpc_cert_file": "a"}, "grpc_key_file missing"),
        ({"grpc_cert_file": "a", "grpc_key_file": "b", "grpc_tls": False}, "grpc_cert_file: without effect"),
        ({"client_ca_file": "a"}, "client_ca_file: without effect unless a port has a certificate"),
    ],
)
def test_settings_without_effect_are_refused(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    """By the one that is wrong."""
    with pytest.raises(ValueError, match=problem):
        GatewaySettings(model_dir=tmp_path, **settings)


@pytest.mark.parametrize("missing", ["https_cert_file", "https_key_file"])
def test_one_file_needs_the_other(loop: Loop, cluster: FakeCluster, tmp_path: Path, missing: str) -> None:
    """The setting that is missing is named."""
    given = {"https_cert_file": tmp_path / "a", "https_key_file": tmp_path / "b"}
    del given[missing]

    with pytest.raises(ValueError, match=f"{missing} missing"), loop.running(cluster, **given):
        pass


def test_files_that_do_not_belong_together_are_refused(authority: trustme.CA, tmp_path: Path) -> None:
    """With their names, before anything is served; a passphrase is not asked for."""
    cert_file, key_file = tmp_path / "tls.crt", tmp_path / "tls.key"
    _write(authority, cert_file, key_file)
    key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    _write(authority, tmp_path / "other.crt", key_file)
    with pytest.raises(ConfigurationError, match=r"tls\.key.*mismatch"):
        PublicCertificate(cert_file, key_file)

    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(os.urandom(8).hex().encode()),
        )
    )
    with pytest.raises(ConfigurationError, match=r"tls\.key"):
        PublicCertificate(cert_file, key_file)
