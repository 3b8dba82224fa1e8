"""Finding 7: clients without a certificate that drip bytes are counted nowhere, and never late."""

from __future__ import annotations

import socket
import ssl
import time

import pytest
import trustme

from attacks.frames.door import is_closed
from baton.grpc_sockets.frames import PREFACE, pack_header
from baton.grpc_sockets.limits import ServerLimits, Timing
from baton.grpc_sockets.server_connection import ServerCall
from grpc_sockets.peers import HOST, SECONDS, serving

DRIP_SECONDS = 0.02
FIRST_BYTES = {
    "tls": b"\x16\x03\x01\x10\x00\x01\x00\x0f\xfc\x03\x03",
    "plain": PREFACE + pack_header(16_000, 77, 0, 0),  # type: ignore[arg-type] # no type of frame, so that it is skipped
}


def _context() -> ssl.SSLContext:
    issued = trustme.CA().issue_cert(HOST)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    return context


def _answer(call: ServerCall) -> None:
    call.send(b"")


@pytest.mark.parametrize("kind", FIRST_BYTES)
def test_a_handshake_that_drips_is_cut_off(kind: str) -> None:
    """After its time, though a byte came just before; what comes after the greeting's start is part of it."""
    context, timing = _context(), Timing(connect_seconds=0.3)
    with (
        serving(_answer, tls=(lambda: context) if kind == "tls" else None, timing=timing) as port,
        socket.create_connection((HOST, port)) as connection,
    ):
        connection.settimeout(DRIP_SECONDS)
        began = time.monotonic()
        for byte in FIRST_BYTES[kind] + bytes(10_000):
            if is_closed(connection):
                break
            connection.sendall(bytes([byte]))
            assert time.monotonic() - began < SECONDS, "it is still open"


def test_connections_count_from_their_acceptance_on(caplog: pytest.LogCaptureFixture) -> None:
    """Those of an address too; others get in as soon as one has gone. The log says so, once a second."""
    began = time.monotonic()
    limits = ServerLimits(num_connections=6, num_address_connections=4)
    with serving(_answer, server_limits=limits, timing=Timing(connect_seconds=SECONDS)) as port:
        held = [_connect_from("127.0.0.1", port) for _ in range(4)]
        assert _is_refused(_connect_from("127.0.0.1", port))
        held += [_connect_from(f"127.0.0.{index}", port) for index in (2, 3)]
        assert _is_refused(_connect_from("127.0.0.4", port))
        held.pop(0).close()
        while _is_refused(_connect_from("127.0.0.1", port)):
            pass
        for connection in held:
            connection.close()
    told = [record.levelname for record in caplog.records if "h2_connection_refused" in record.getMessage()]
    assert set(told) == {"WARNING"}
    assert len(told) <= 1 + (time.monotonic() - began)


def _connect_from(host: str, port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=SECONDS, source_address=(host, 0))


def _is_refused(connection: socket.socket) -> bool:
    """Return whether a server closes a connection instead of greeting; close it."""
    with connection:
        try:
            connection.sendall(PREFACE)
            return connection.recv(9) == b""
        except ConnectionError:
            return True
