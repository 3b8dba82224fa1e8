"""Finding 6: a few bytes that announce large messages reserve their memory, and half a request waits for ever."""

from __future__ import annotations

import struct
import threading
import time
from pathlib import Path

import pytest

from attacks.frames.door import SECONDS, frame, is_closed, open_node, opening, streams
from attacks.victims import MIB, full
from baton.grpc_sockets.client import ClientConnection
from baton.grpc_sockets.frames import ErrorCode, FrameType
from baton.grpc_sockets.headers import Code
from baton.grpc_sockets.limits import ServerLimits, Timing
from baton.grpc_sockets.server_connection import ServerCall
from checkpoints import checkpoint
from grpc_sockets.peers import PATH, FramePeer, Listener, connected, serving

ANNOUNCED = struct.pack(">BI", 0, 16 * MIB)
NUM_STREAMS = 24


def echo(call: ServerCall) -> None:
    """Answer with the request."""
    call.send(call.request)


@full
def test_what_is_announced_is_not_reserved(tmp_path: Path) -> None:
    """24 times 16 MiB, by some hundred bytes; half of them comes to nothing after 20 s, however it drips."""
    with open_node(checkpoint("llama"), tmp_path) as door, door.connect() as connection:
        with door.damage() as damage:
            for stream_id in streams(NUM_STREAMS):
                connection.sendall(opening(stream_id) + frame(FrameType.DATA, ANNOUNCED, stream_id=stream_id))
            time.sleep(1)
        print(f"{NUM_STREAMS} messages announced: {damage}")
        began = time.monotonic()
        connection.settimeout(0.2)
        while not is_closed(connection):
            connection.sendall(frame(FrameType.DATA, bytes(100), stream_id=1))
            assert time.monotonic() - began < SECONDS, "half a request is waited for"
        print(f"half a request was waited for {time.monotonic() - began:.0f} s")

    assert damage.most_bytes < 8 * MIB


def test_half_a_request_is_cut_off_however_it_drips() -> None:
    """A byte now and then does not stretch its time; the next connection is served."""
    with serving(echo, timing=Timing(connect_seconds=SECONDS, request_seconds=0.2)) as port:
        peer = FramePeer.connect(port)
        peer.greet()
        peer.socket.sendall(opening(1, PATH) + frame(FrameType.DATA, ANNOUNCED, stream_id=1)[:10])
        peer.socket.settimeout(0.05)
        began = time.monotonic()
        while not is_closed(peer.socket):
            peer.send(FrameType.DATA, b"", stream_id=1)
            assert time.monotonic() - began < SECONDS
        peer.socket.close()
        listener = Listener()
        with connected(port) as connection:
            connection.call(PATH, b"alive", listener)

            assert listener.result().code is Code.OK


def test_requests_of_all_connections_share_a_budget() -> None:
    """Who finds nothing left is refused; what is answered makes room."""
    begun, may_answer = threading.Event(), threading.Event()

    def wait(call: ServerCall) -> None:
        begun.set()
        assert may_answer.wait(SECONDS)

    first = Listener()
    with (
        serving(wait, server_limits=ServerLimits(num_request_bytes=100_000)) as port,
        connected(port) as one,
        connected(port) as other,
    ):
        one.call(PATH, bytes(60_000), first)
        assert begun.wait(SECONDS)
        assert _code(other, bytes(60_000)) is Code.RESOURCE_EXHAUSTED
        may_answer.set()
        assert first.result().code is Code.OK
        while (code := _code(other, bytes(90_000))) is Code.RESOURCE_EXHAUSTED:
            pass  # until the first one's thread has ended

        assert code is Code.OK


def test_calls_of_all_connections_share_a_budget() -> None:
    """Each has a thread; one that arrives counts as well, until it is dropped."""
    with serving(echo, server_limits=ServerLimits(num_calls=2)) as port, connected(port) as other:
        peer = FramePeer.connect(port)
        peer.greet()
        for number in streams(3):
            peer.socket.sendall(opening(number, PATH))
        assert peer.wait_for(FrameType.RST_STREAM) == struct.pack(">I", ErrorCode.REFUSED_STREAM)
        assert _code(other, b"") is Code.UNAVAILABLE
        peer.send(FrameType.RST_STREAM, bytes(4), stream_id=1)
        while (code := _code(other, b"")) is Code.UNAVAILABLE:
            pass  # until the reset has come

        assert code is Code.OK
        peer.socket.close()


def test_a_call_without_a_thread_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused, on a connection that goes on."""
    start, can_start = threading.Thread.start, threading.Event()

    def start_some(thread: threading.Thread) -> None:
        if thread.name == "h2-call" and not can_start.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    limits = ServerLimits(num_calls=1, num_request_bytes=1000)
    with serving(echo, server_limits=limits) as port, connected(port) as caller:
        monkeypatch.setattr(threading.Thread, "start", start_some)
        assert [_code(caller, bytes(900)) for _ in range(3)] == [Code.RESOURCE_EXHAUSTED] * 3
        can_start.set()

        assert _code(caller, bytes(900)) is Code.OK


def _code(connection: ClientConnection, request: bytes) -> Code:
    """Return how a call ends."""
    listener = Listener()
    connection.call(PATH, request, listener)
    return listener.result().code
