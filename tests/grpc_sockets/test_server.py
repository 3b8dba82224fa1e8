"""The server, called by grpcio and by this package's client."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import Any

import grpc
import pytest

from baton.grpc_sockets.flow_control import StreamEndedError
from baton.grpc_sockets.headers import CallError, Code
from baton.grpc_sockets.limits import Limits
from baton.grpc_sockets.server import GrpcSocketServer
from baton.grpc_sockets.server_connection import ServerCall
from grpc_sockets.peers import HOST, PATH, SECONDS, Listener, connected, grpcio_stream, serving

SIZES = (0, 1, 5, 16384, 65535, 1_000_003)


def sizes_asked(call: ServerCall) -> None:
    """Answer "1 20 300" with messages of these sizes, each in three parts."""
    for size in map(int, call.request.split()):
        whole = memoryview(pattern(size))
        call.send(whole[: size // 3], b"", whole[size // 3 :])


def pattern(size: int) -> bytes:
    """Return bytes in which every shift shows."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def test_grpcio_receives_messages_of_any_size() -> None:
    """Empty, smaller and larger than frames and windows, whole and in order."""
    with serving(sizes_asked) as port, grpcio_stream(port) as stream:
        request = " ".join(map(str, SIZES)).encode()

        assert list(stream(request, timeout=SECONDS)) == [pattern(size) for size in SIZES]


def test_a_request_larger_than_the_window_arrives() -> None:
    """The window opens while the request comes."""
    with serving(lambda call: call.send(str(len(call.request)).encode())) as port, grpcio_stream(port) as stream:
        assert list(stream(bytes(5_000_000), timeout=SECONDS)) == [b"5000000"]


def test_metadata_and_deadline_reach_the_handler() -> None:
    """Text as text, -bin as bytes, also when header compression refers to an earlier call."""

    def tell(call: ServerCall) -> None:
        remaining = call.remaining_seconds()
        assert remaining is not None
        call.send(str((call.metadata["traceparent"], call.metadata["x-bin"], 0 < remaining < SECONDS + 1)).encode())

    with serving(tell) as port, grpcio_stream(port) as stream:
        for number in range(3):
            metadata = (("traceparent", f"00-{number}"), ("x-bin", bytes([255, number])))
            answer = list(stream(b"", timeout=SECONDS, metadata=metadata))

            assert answer == [str((f"00-{number}", bytes([255, number]), True)).encode()]


@pytest.mark.parametrize("num_messages", [0, 2])
def test_a_status_arrives_with_message_and_details(num_messages: int) -> None:
    """Before and after messages; text beyond ASCII survives."""

    def fail(call: ServerCall) -> None:
        for _ in range(num_messages):
            call.send(b"x")
        raise CallError(Code.DATA_LOSS, "Größe 100% \n falsch", b"\x00\x01details")

    with serving(fail) as port, grpcio_stream(port) as stream:
        received: list[bytes] = []
        with pytest.raises(grpc.RpcError) as caught:
            received.extend(stream(b"", timeout=SECONDS))
        error: Any = caught.value
        assert received == [b"x"] * num_messages
        assert error.code() is grpc.StatusCode.DATA_LOSS
        assert error.details() == "Größe 100% \n falsch"
        assert ("grpc-status-details-bin", b"\x00\x01details") in error.trailing_metadata()


def test_a_bug_in_a_handler_ends_its_call_only(caplog: pytest.LogCaptureFixture) -> None:
    """INTERNAL with the kind of the error; the traceback is logged, the connection goes on."""

    def fail(call: ServerCall) -> None:
        if call.request == b"bug":
            raise KeyError("secret")
        call.send(b"fine")

    with serving(fail) as port, grpcio_stream(port) as stream:
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(b"bug", timeout=SECONDS))
        error: Any = caught.value

        assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error: KeyError")
        assert "h2_call_failed" in caplog.text
        assert list(stream(b"", timeout=SECONDS)) == [b"fine"]


def test_an_unknown_method_is_unimplemented() -> None:
    """It is named."""
    with serving({"/other.Service/Method": sizes_asked}) as port, grpcio_stream(port) as stream:
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(b"", timeout=SECONDS))
        error: Any = caught.value

        assert error.code() is grpc.StatusCode.UNIMPLEMENTED
        assert PATH in error.details()


def test_a_request_over_the_limit_is_refused() -> None:
    """With the limit, before it has been read."""
    with serving(sizes_asked, limits=Limits(message_bytes=1000)) as port, grpcio_stream(port) as stream:
        with pytest.raises(grpc.RpcError) as caught:
            list(stream(bytes(3_000_000), timeout=SECONDS))
        error: Any = caught.value

        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1000" in error.details()
        assert list(stream(b"7", timeout=SECONDS)) == [pattern(7)]


def test_cancelling_wakes_the_handler_and_stops_its_sending() -> None:
    """Also where it waits for something else than the connection."""
    cancelled, stopped = threading.Event(), threading.Event()

    def wait(call: ServerCall) -> None:
        call.send(b"begun")
        call.watch(cancelled.set)
        assert cancelled.wait(SECONDS)
        with pytest.raises(StreamEndedError):
            call.send(b"late")
        stopped.set()

    with serving(wait) as port, grpcio_stream(port) as stream:
        call = stream(b"", timeout=SECONDS)
        assert next(call) == b"begun"
        call.cancel()

        assert stopped.wait(SECONDS)


def test_a_caller_that_is_lost_cancels_its_calls() -> None:
    """The connection's end is the end of all calls on it."""
    cancelled, begun = threading.Event(), threading.Event()

    def wait(call: ServerCall) -> None:
        call.watch(cancelled.set)
        begun.set()
        assert cancelled.wait(SECONDS)

    with serving(wait) as port, connected(port) as connection:
        connection.call(PATH, b"", Listener())
        assert begun.wait(SECONDS)
        connection.shut_down()

        assert cancelled.wait(SECONDS)


def test_a_caller_that_does_not_read_holds_the_sender_back() -> None:
    """No more leaves than the caller's window allows; everything arrives once it reads."""
    num_sent = 0

    def pour(call: ServerCall) -> None:
        nonlocal num_sent
        for _ in range(64):
            call.send(bytes(100_000))
            num_sent += 1

    listener = Listener()
    limits = Limits(stream_window_bytes=1 << 17, num_held_bytes=1 << 18)
    with serving(pour) as port, connected(port, limits=limits) as connection:
        call = connection.call(PATH, b"", listener)
        for _ in range(3):
            assert listener.arrived.acquire(timeout=SECONDS)
        time.sleep(0.2)  # nothing shows that nothing happens

        assert num_sent <= (limits.num_held_bytes + 2 * limits.stream_window_bytes) // 100_000 + 1
        for _ in range(64):
            call.release(100_000)
        assert listener.result().code is Code.OK
        assert len(listener.messages) == 64


def test_the_deadline_ends_a_call_that_waits_for_its_caller() -> None:
    """The server says so itself, whatever the caller does."""
    listener = Listener()
    limits = Limits(stream_window_bytes=1 << 16, num_held_bytes=1)
    with (
        serving(lambda call: [call.send(bytes(50_000)) for _ in range(100)] and None) as port,
        connected(port, limits=limits) as connection,
    ):
        connection.call(PATH, b"", listener, timeout_seconds=0.3)

        assert listener.result().code is Code.DEADLINE_EXCEEDED


def test_calls_of_one_connection_run_side_by_side() -> None:
    """Each gets its own messages, whatever the others get."""
    with serving(sizes_asked) as port, grpcio_stream(port) as stream, futures.ThreadPoolExecutor(8) as pool:
        requests = [[1000 * index + size for size in (1, 300_000, 7)] for index in range(16)]
        answers = list(
            pool.map(lambda sizes: list(stream(" ".join(map(str, sizes)).encode(), timeout=SECONDS)), requests)
        )

        assert answers == [[pattern(size) for size in sizes] for sizes in requests]


def test_a_draining_server_finishes_its_calls_and_takes_no_others() -> None:
    """New calls are refused as UNAVAILABLE while the old one goes on."""
    begun, gate = threading.Event(), threading.Event()

    def wait(call: ServerCall) -> None:
        begun.set()
        assert gate.wait(SECONDS)
        call.send(b"done")

    server = GrpcSocketServer(HOST, 0, {PATH: wait})
    port = server.start()
    first = Listener()
    with connected(port) as connection:
        connection.call(PATH, b"", first)
        assert begun.wait(SECONDS)
        draining = threading.Thread(target=server.drain, args=(SECONDS,))
        draining.start()
        while connection.is_open:
            time.sleep(0.001)
        with pytest.raises(CallError) as refused:
            connection.call(PATH, b"", Listener())
        gate.set()

        assert refused.value.status.code is Code.UNAVAILABLE
        assert first.result().code is Code.OK
        assert first.messages == [b"done"]
        draining.join(SECONDS)
        assert not draining.is_alive()


def test_calls_that_outlast_the_grace_are_cut() -> None:
    """The handler is told, the caller sees UNAVAILABLE."""
    begun, cancelled, listener = threading.Event(), threading.Event(), Listener()

    def wait(call: ServerCall) -> None:
        call.watch(cancelled.set)
        begun.set()
        assert cancelled.wait(SECONDS)

    server = GrpcSocketServer(HOST, 0, {PATH: wait})
    with connected(server.start()) as connection:
        connection.call(PATH, b"", listener)
        assert begun.wait(SECONDS)
        server.drain(0.05)

        assert cancelled.is_set()
        assert listener.result().code is Code.UNAVAILABLE


def test_grpcio_may_ask_for_signs_of_life_while_a_handler_computes() -> None:
    """A prefill of several seconds is no dead peer."""

    def compute(call: ServerCall) -> None:
        time.sleep(1.5)
        call.send(b"done")

    options = (
        ("grpc.keepalive_time_ms", 300),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.ping_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
    )
    with serving(compute) as port, grpcio_stream(port, *options) as stream:
        assert list(stream(b"", timeout=SECONDS)) == [b"done"]
