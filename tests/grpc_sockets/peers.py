"""Both ends of a connection for tests: servers of this package and of grpcio, a listener, and a peer made of frames."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import grpc

from baton.grpc_sockets.client import ClientConnection, connect
from baton.grpc_sockets.frames import (
    FRAME_HEADER_BYTES,
    PREFACE,
    FrameType,
    pack_header,
    settings_frame,
    unpack_header,
)
from baton.grpc_sockets.headers import Status
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.server import GrpcSocketServer
from baton.grpc_sockets.server_connection import Handler

HOST = "127.0.0.1"
SECONDS = 60.0
PATH = "/test.Service/Stream"
QUICK = Timing(connect_seconds=0.5, idle_seconds=0.5, ping_seconds=0.5, send_seconds=2.0)
PATIENT = Timing(connect_seconds=SECONDS, idle_seconds=SECONDS, ping_seconds=SECONDS, send_seconds=SECONDS)
"""For peers that are well, however busy the machine."""


@contextlib.contextmanager
def serving(handlers: Mapping[str, Handler] | Handler, **options: Any) -> Iterator[int]:
    """Serve one handler, or several by path; yield the port."""
    by_path = handlers if isinstance(handlers, Mapping) else {PATH: handlers}
    server = GrpcSocketServer(HOST, 0, by_path, **options)
    port = server.start()
    try:
        yield port
    finally:
        server.drain(0)


@contextlib.contextmanager
def serving_grpcio(behavior: Callable[..., Any], **arguments: Any) -> Iterator[int]:
    """Serve a behaviour that yields bytes with grpcio, under every path; yield the port."""

    class Handlers(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_stream_rpc_method_handler(behavior)

    options = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
    server = grpc.server(futures.ThreadPoolExecutor(16), handlers=[Handlers()], options=options)
    if "credentials" in arguments:
        port = server.add_secure_port(f"{HOST}:0", arguments["credentials"])
    else:
        port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait(SECONDS)


@contextlib.contextmanager
def grpcio_stream(port: int, *options: tuple[str, Any]) -> Iterator[Callable[..., Any]]:
    """Yield a callable that streams from PATH with grpcio; bytes in, bytes out."""
    with grpc.insecure_channel(
        f"{HOST}:{port}", options=(("grpc.max_receive_message_length", -1), *options)
    ) as channel:
        yield channel.unary_stream(PATH)


@contextlib.contextmanager
def connected(port: int, **options: Any) -> Iterator[ClientConnection]:
    """Yield a connection of this package; a patient one, unless `timing` says otherwise."""
    connection = connect((HOST, port), **{"timing": PATIENT, **options})
    try:
        yield connection
    finally:
        connection.shut_down()


class Listener:
    """Keeps what happens to a call."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.arrived = threading.Semaphore(0)
        self.over = threading.Event()
        self.status: Status | None = None

    def allocate(self, num_bytes: int) -> memoryview:
        """Return fresh memory."""
        return memoryview(bytearray(num_bytes))

    def message(self, data: memoryview) -> None:
        """Keep a message."""
        self.messages.append(bytes(data))
        self.arrived.release()

    def ended(self, status: Status) -> None:
        """Keep the status."""
        assert self.status is None, "ended twice"
        self.status = status
        self.over.set()

    def result(self) -> Status:
        """Return the status of the call, once it has ended."""
        assert self.over.wait(SECONDS), "the call does not end"
        assert self.status is not None
        return self.status


class FramePeer:
    """A peer that says exactly what a test wants, over a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        sock.settimeout(SECONDS)

    @classmethod
    def connect(cls, port: int) -> FramePeer:
        """Return a client that has said nothing yet."""
        return cls(socket.create_connection((HOST, port)))

    def greet(self) -> None:
        """Say what a client says first."""
        self.socket.sendall(PREFACE + settings_frame({}))

    def send(self, frame_type: int, payload: bytes = b"", *, flags: int = 0, stream_id: int = 0) -> None:
        """Send a frame."""
        with contextlib.suppress(ConnectionError):  # it may have been closed for what was sent before
            self.socket.sendall(pack_header(len(payload), frame_type, flags, stream_id) + payload)  # type: ignore[arg-type]

    def frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield (type, flags, stream, payload) of each frame until the other side closes."""
        with contextlib.suppress(ConnectionError):
            while len(head := self._read(FRAME_HEADER_BYTES)) == FRAME_HEADER_BYTES:
                header = unpack_header(head)
                yield header.frame_type, header.flags, header.stream_id, self._read(header.num_bytes)

    def wait_for(self, frame_type: FrameType) -> bytes:
        """Return the payload of the next frame of a type."""
        for kind, _, _, payload in self.frames():
            if kind == frame_type:
                return payload
        raise AssertionError(f"the connection ended without {frame_type.name}")

    def _read(self, num_bytes: int) -> bytes:
        data = b""
        while len(data) < num_bytes:
            more = self.socket.recv(num_bytes - len(data))
            if not more:
                break
            data += more
        return data


SMALL = Limits(
    frame_bytes=16384,
    header_bytes=2048,
    message_bytes=1 << 16,
    num_streams=4,
    stream_window_bytes=1 << 15,
    num_held_bytes=1 << 16,
    num_control_frames_per_second=50,
)
"""Bounds that are soon met."""
