"""Whatever a peer sends, a connection ends or serves, soon, and the process goes on."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.grpc_sockets.client import ClientConnection
from baton.grpc_sockets.connection import Connection
from baton.grpc_sockets.frame_io import message_prefix
from baton.grpc_sockets.frames import PREFACE, FrameType, pack_header, settings_frame
from baton.grpc_sockets.incoming_request import ServerBudgets
from baton.grpc_sockets.limits import ServerLimits, Timing
from baton.grpc_sockets.server_connection import ServerCall, ServerConnection
from baton.grpc_sockets.sockets import prepare
from grpc_sockets.peers import PATH, SECONDS, SMALL, Listener
from grpc_sockets.test_protocol_rules import block

TIMING = Timing(connect_seconds=SECONDS, idle_seconds=SECONDS, ping_seconds=SECONDS, send_seconds=SECONDS)
MOST_BYTES = SMALL.message_bytes
"""Largest memory that a test's peer may have asked for at once."""

numbers = st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1])
kinds = st.sampled_from([*FrameType, 10, 255])
flags = st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D, 0xFF])
payloads = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([block(), block(("grpc-timeout", "1S")), message_prefix(2) + b"hi", message_prefix(2**32 - 1)]),
    st.sampled_from([4, 5, 8, 6, 100, 16384, 17000]).map(bytes),
    st.builds(lambda key, value: struct.pack(">HI", key, value), st.integers(0, 7), st.integers(0, 2**32 - 1)),
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame of any type whose length is that of its payload, or a lie."""
    payload = draw(payloads)
    num_bytes = draw(st.one_of(st.just(len(payload)), st.sampled_from([0, 1, 2**24 - 1])))
    return pack_header(num_bytes, draw(kinds), draw(flags), draw(numbers)) + payload


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Frames in any order, cut and changed anywhere."""
    data = bytearray(b"".join(draw(st.lists(frames(), max_size=12))))
    for _ in range(draw(st.integers(0, 2))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data)


def converse(make: Callable[[socket.socket], Connection], data: bytes, before: Callable[[Any], None]) -> Connection:
    """Let a connection read `data` and then the end; return it when its thread has ended."""
    ours, theirs = socket.socketpair()
    with theirs:
        prepare(ours, receive_seconds=0.05, send_seconds=1.0)
        theirs.settimeout(SECONDS)
        connection = make(ours)
        running = threading.Thread(target=connection.run, daemon=True)
        running.start()
        before(connection)
        drained = threading.Thread(target=read_all, args=(theirs,), daemon=True)
        drained.start()
        try:
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has closed already, which is its right
        running.join(SECONDS)
        assert not running.is_alive(), "the connection hangs"
        drained.join(SECONDS)
        assert not drained.is_alive(), "the socket was not closed"
    return connection


def read_all(sock: socket.socket) -> None:
    """Take what a connection answers."""
    try:
        while sock.recv(65536):
            pass
    except OSError:
        pass


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversations(), st.booleans())
def test_a_server_survives_any_client(data: bytes, has_greeted: bool) -> None:
    """Its calls end, its thread ends, and no error but a closed connection comes of it."""
    served: list[ServerCall] = []

    def answer(call: ServerCall) -> None:
        served.append(call)
        assert len(call.request) <= MOST_BYTES
        call.send(call.request)

    greeting = PREFACE + settings_frame({}) if has_greeted else b""
    budgets = ServerBudgets(ServerLimits())
    connection = converse(
        lambda sock: ServerConnection(sock, {PATH: answer}, SMALL, TIMING, None, budgets),
        greeting + data,
        lambda _connection: None,
    )

    assert isinstance(connection, ServerConnection)
    assert connection.wait_idle(SECONDS)
    assert all(call.is_over for call in served)


class BoundedListener(Listener):
    """Gives no memory beyond the limit."""

    def allocate(self, num_bytes: int) -> memoryview:
        """Return fresh memory."""
        assert num_bytes <= MOST_BYTES
        return super().allocate(num_bytes)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversations())
def test_a_client_survives_any_server(data: bytes) -> None:
    """Its calls end with a status, once, and its thread ends."""
    listeners = [BoundedListener(), BoundedListener()]

    def call(connection: ClientConnection) -> None:
        for listener in listeners:
            connection.call(PATH, b"request", listener)

    converse(lambda sock: ClientConnection(sock, "test", "http", SMALL, TIMING), settings_frame({}) + data, call)

    for listener in listeners:
        assert listener.result() is not None


@pytest.fixture(autouse=True)
def no_bug_was_logged(caplog: pytest.LogCaptureFixture) -> Any:
    """An unexpected exception is caught at the edge of a thread and logged: none may be."""
    yield
    assert "h2_connection_failed" not in caplog.text
    assert "h2_call_failed" not in caplog.text
