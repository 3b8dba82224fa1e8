"""The client, against grpcio's server and against peers that fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from baton.grpc_sockets.frames import FrameType
from baton.grpc_sockets.headers import CallError, Code
from baton.grpc_sockets.limits import Limits
from grpc_sockets.peers import HOST, PATH, QUICK, SECONDS, FramePeer, Listener, connected, serving, serving_grpcio
from grpc_sockets.test_server import SIZES, pattern


def sizes_asked(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    """Answer "1 20 300" with messages of these sizes."""
    for size in map(int, request.split()):
        yield pattern(size)


def test_grpcio_sends_messages_of_any_size() -> None:
    """Empty, smaller and larger than frames and windows, whole and in order."""
    listener = Listener()
    with serving_grpcio(sizes_asked) as port, connected(port) as connection:
        connection.call(PATH, " ".join(map(str, SIZES)).encode(), listener)

        assert listener.result().code is Code.OK
        assert listener.messages == [pattern(size) for size in SIZES]


def test_a_large_request_reaches_grpcio() -> None:
    """Its windows are kept."""
    listener = Listener()
    with (
        serving_grpcio(lambda request, context: iter([str(len(request)).encode()])) as port,
        connected(port) as connection,
    ):
        connection.call(PATH, bytes(5_000_000), listener)

        assert listener.result().code is Code.OK
        assert listener.messages == [b"5000000"]


def test_metadata_and_deadline_reach_grpcio() -> None:
    """As it reads them from any client."""

    def tell(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        metadata = dict(context.invocation_metadata())
        remaining = context.time_remaining()
        yield str((metadata["traceparent"], metadata["x-bin"], 0 < remaining <= SECONDS)).encode()

    with serving_grpcio(tell) as port, connected(port) as connection:
        for number in range(3):
            listener = Listener()
            metadata = {"traceparent": f"00-{number}", "x-bin": bytes([255, number])}
            connection.call(PATH, b"", listener, metadata=metadata, timeout_seconds=SECONDS)

            assert listener.result().code is Code.OK
            assert listener.messages == [str((f"00-{number}", bytes([255, number]), True)).encode()]


def test_status_and_details_come_from_grpcio() -> None:
    """Text beyond ASCII and binary details."""

    def fail(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b"x"
        context.set_trailing_metadata((("grpc-status-details-bin", b"\x00\x01details"),))
        context.abort(grpc.StatusCode.NOT_FOUND, "Größe 100% fehlt")

    listener = Listener()
    with serving_grpcio(fail) as port, connected(port) as connection:
        connection.call(PATH, b"", listener)

        assert listener.result() == (Code.NOT_FOUND, "Größe 100% fehlt", b"\x00\x01details")
        assert listener.messages == [b"x"]


def test_cancelling_ends_the_call_at_grpcio_and_is_silent_here() -> None:
    """The listener hears nothing more; the connection serves the next call."""
    begun, over = threading.Event(), threading.Event()

    def wait(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        if request:
            context.add_callback(over.set)
            begun.set()
            assert over.wait(SECONDS)
        yield b"x"

    cancelled, other = Listener(), Listener()
    with serving_grpcio(wait) as port, connected(port) as connection:
        call = connection.call(PATH, b"wait", cancelled)
        assert begun.wait(SECONDS)
        call.cancel()
        assert over.wait(SECONDS)
        connection.call(PATH, b"", other)

        assert other.result().code is Code.OK
        assert cancelled.status is None


def test_grpcio_is_held_back_until_messages_are_released() -> None:
    """Memory that the taker holds bounds what the peer may send."""
    num_made = 0

    def pour(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        nonlocal num_made
        for _ in range(100):
            num_made += 1
            yield bytes(100_000)

    listener = Listener()
    with (
        serving_grpcio(pour) as port,
        connected(port, limits=Limits(stream_window_bytes=1 << 17, num_held_bytes=1 << 18)) as connection,
    ):
        call = connection.call(PATH, b"", listener)
        for _ in range(3):
            assert listener.arrived.acquire(timeout=SECONDS)
        assert not listener.over.wait(0.3)
        assert num_made < 50
        for _ in range(100):
            call.release(100_000)

        assert listener.result().code is Code.OK
        assert len(listener.messages) == 100


def test_a_message_over_the_limit_ends_the_call() -> None:
    """Its memory is never asked for; the connection goes on."""
    large, small = Listener(), Listener()
    with serving_grpcio(sizes_asked) as port, connected(port, limits=Limits(message_bytes=1000)) as connection:
        connection.call(PATH, b"1 1001", large)
        assert large.result().code is Code.RESOURCE_EXHAUSTED
        connection.call(PATH, b"1000", small)

        assert small.result().code is Code.OK
        assert large.messages == [pattern(1)]


def test_a_message_that_cannot_be_used_ends_the_call_with_its_reason() -> None:
    """The listener decides."""

    class Picky(Listener):
        def message(self, data: memoryview) -> None:
            raise CallError(Code.DATA_LOSS, "not this one")

    listener = Picky()
    with serving_grpcio(sizes_asked) as port, connected(port) as connection:
        connection.call(PATH, b"10 10", listener)

        assert listener.result() == (Code.DATA_LOSS, "not this one", b"")


def test_nobody_listening_is_an_error_at_once() -> None:
    """As any connection refused."""
    with socket.socket() as unused:
        unused.bind((HOST, 0))  # nobody else gets the port, and nobody listens on it

        with pytest.raises(OSError, match="refused"), connected(unused.getsockname()[1]):
            pass


def test_a_server_that_says_nothing_is_given_up() -> None:
    """A process that is stopped still has its connections accepted, by the kernel."""
    with (
        socket.create_server((HOST, 0)) as server,
        pytest.raises(OSError, match="HTTP/2"),
        connected(server.getsockname()[1], timing=QUICK),
    ):
        pass


def test_a_server_of_another_protocol_is_given_up() -> None:
    """Its first bytes show it."""
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            with server.accept()[0] as accepted:
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()

        with pytest.raises(OSError, match="HTTP/2"), connected(server.getsockname()[1], timing=QUICK):
            pass
        answering.join(SECONDS)


def test_a_server_that_falls_silent_ends_its_calls() -> None:
    """It answers no ping: UNAVAILABLE within idle and ping time."""
    with socket.create_server((HOST, 0)) as server:
        peers: list[FramePeer] = []

        def answer() -> None:
            peers.append(FramePeer(server.accept()[0]))
            peers[0].send(FrameType.SETTINGS)

        threading.Thread(target=answer, daemon=True).start()
        listener = Listener()
        timing = replace(QUICK, connect_seconds=SECONDS)
        with connected(server.getsockname()[1], timing=timing) as connection:
            connection.call(PATH, b"", listener)
            status = listener.result()

            assert status.code is Code.UNAVAILABLE
            assert "silent" in status.message
            with pytest.raises(CallError, match="silent"):
                connection.call(PATH, b"", Listener())
        peers[0].socket.close()


def test_a_server_that_dies_ends_its_calls() -> None:
    """UNAVAILABLE, whatever had arrived."""
    gate, listener = threading.Event(), Listener()

    def wait(call: Any) -> None:
        call.send(b"x")
        gate.wait(SECONDS)

    with serving(wait) as port, connected(port) as connection:
        connection.call(PATH, b"", listener)
        assert listener.arrived.acquire(timeout=SECONDS)
        connection.shut_down()

        assert listener.result().code is Code.UNAVAILABLE
        gate.set()


def test_more_calls_than_the_server_takes_are_refused_here() -> None:
    """They would only be refused there."""
    gate = threading.Event()
    with (
        serving(lambda call: gate.wait(SECONDS) and None, limits=Limits(num_streams=2)) as port,
        connected(port) as connection,
    ):
        for _ in range(2):
            connection.call(PATH, b"", Listener())
        with pytest.raises(CallError) as caught:
            connection.call(PATH, b"", Listener())
        gate.set()

        assert caught.value.status.code is Code.RESOURCE_EXHAUSTED
