"""The same calls through TLS, with grpcio and with this package on either side."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import trustme

from baton.grpc_sockets.headers import Code
from grpc_sockets import test_client, test_server
from grpc_sockets.peers import HOST, PATH, QUICK, SECONDS, Listener, connected, serving, serving_grpcio
from grpc_sockets.test_server import SIZES, pattern

_REQUEST = " ".join(map(str, SIZES)).encode()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with key.pem and cert.pem, valid for 127.0.0.1, and ca.pem."""
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    issued = authority.issue_cert(HOST)
    (folder / "key.pem").write_bytes(issued.private_key_pem.bytes())
    (folder / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    (folder / "ca.pem").write_bytes(authority.cert_pem.bytes())
    return folder


def server_context(folder: Path) -> Callable[[], ssl.SSLContext]:
    """Return the server's side."""

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        return context

    return make


def client_context(folder: Path) -> ssl.SSLContext:
    """Return the side of a client that trusts the certificate."""
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


def test_grpcio_calls_through_tls(certificate: Path) -> None:
    """Messages of all sizes."""
    credentials = grpc.ssl_channel_credentials((certificate / "ca.pem").read_bytes())
    with (
        serving(test_server.sizes_asked, tls=server_context(certificate)) as port,
        grpc.secure_channel(f"{HOST}:{port}", credentials, (("grpc.max_receive_message_length", -1),)) as channel,
    ):
        assert list(channel.unary_stream(PATH)(_REQUEST, timeout=SECONDS)) == [pattern(size) for size in SIZES]


def test_grpcio_is_called_through_tls(certificate: Path) -> None:
    """Messages of all sizes."""
    pair = ((certificate / "key.pem").read_bytes(), (certificate / "cert.pem").read_bytes())
    listener = Listener()
    with (
        serving_grpcio(test_client.sizes_asked, credentials=grpc.ssl_server_credentials([pair])) as port,
        connected(port, tls=client_context(certificate)) as connection,
    ):
        connection.call(PATH, _REQUEST, listener)

        assert listener.result().code is Code.OK
        assert listener.messages == [pattern(size) for size in SIZES]


def test_both_ends_here_through_tls(certificate: Path) -> None:
    """Several calls, and requests larger than windows."""
    with (
        serving(lambda call: call.send(call.request), tls=server_context(certificate)) as port,
        connected(port, tls=client_context(certificate)) as connection,
    ):
        listeners = [Listener() for _ in range(4)]
        for index, listener in enumerate(listeners):
            connection.call(PATH, pattern(1_000_000 + index), listener)

        for index, listener in enumerate(listeners):
            assert listener.result().code is Code.OK
            assert listener.messages == [pattern(1_000_000 + index)]


def test_a_certificate_that_is_not_trusted_is_refused(certificate: Path) -> None:
    """Before anything is sent."""
    with (
        serving(test_server.sizes_asked, tls=server_context(certificate)) as port,
        pytest.raises(ssl.SSLCertVerificationError),
        connected(port, tls=ssl.create_default_context()),
    ):
        pass


def test_a_plain_client_of_a_tls_server_is_refused(certificate: Path) -> None:
    """Neither side hangs."""
    with (
        serving(test_server.sizes_asked, tls=server_context(certificate), timing=QUICK) as port,
        pytest.raises(OSError, match="HTTP/2"),
        connected(port, timing=QUICK),
    ):
        pass
