"""HTTPS on the REST port."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from baton.errors import ConfigurationError
from baton.gateway.server import RunningGateway
from baton.security.tls import PublicCertificate
from gateway.fake_cluster import FakeCluster, Loop
from gateway.http.raw_client import completion, exchange, post


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
    """Answers and streams, on one connection; by HTTP/1.1 and a current TLS."""
    with site.connection(authority) as client:
        statuses = [_status(client), _status(client, stream=True), _status(client)]

        assert statuses == [200, 200, 200]
        assert isinstance(client.sock, ssl.SSLSocket)
        assert client.sock.version() == "TLSv1.3"


def test_a_certificate_that_is_replaced_is_shown_to_new_connections(site: Site, authority: trustme.CA) -> None:
    """Nobody is cut off, and whoever believes the new authority alone is served."""
    other = trustme.CA()
    with site.connection(authority) as old:
        site.replace(other)

        assert [_status(old), site.status(other)] == [200, 200]
    with pytest.raises(ssl.SSLCertVerificationError):
        site.status(authority)


def test_files_that_cannot_be_used_leave_the_certificate_as_it_was(site: Site, authority: trustme.CA) -> None:
    """As between the replacement of the certificate and that of its key, or while there is none."""
    site.cert_file.write_bytes(trustme.CA().issue_cert("127.0.0.1").cert_chain_pems[0].bytes())
    assert site.status(authority) == 200

    site.key_file.unlink()
    assert site.status(authority) == 200


def test_who_speaks_no_tls_is_let_go(site: Site, authority: trustme.CA) -> None:
    """Plain HTTP, or nothing at all within the time of a head; others are served."""
    assert b"HTTP" not in exchange(site.gateway, post("/v1/completions", completion()))
    with socket.create_connection(("127.0.0.1", site.gateway.http_port), timeout=20) as silent:
        assert silent.recv(1) == b""

    assert site.status(authority) == 200


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
