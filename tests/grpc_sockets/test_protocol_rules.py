"""What breaks HTTP/2's rules ends the connection with the code that the RFC names; what is merely odd does not."""

from __future__ import annotations

import struct
import threading

import hpack
import pytest

from baton.grpc_sockets.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    PADDED,
    ErrorCode,
    FrameType,
)
from baton.grpc_sockets.headers import Code
from baton.grpc_sockets.limits import Limits
from baton.grpc_sockets.server_connection import ServerCall
from grpc_sockets.peers import PATH, QUICK, SECONDS, SMALL, FramePeer, Listener, connected, serving

_REQUEST = b"\x00\x00\x00\x00\x02hi"
_HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "test"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def block(*extra: tuple[str, str], **changed: str) -> bytes:
    """Return the header block of a call."""
    headers = [(key, changed.get(key.strip(":").replace("-", "_"), value)) for key, value in _HEADERS]
    return bytes(hpack.Encoder().encode([*headers, *extra]))


def echo(call: ServerCall) -> None:
    """Answer with the request."""
    call.send(call.request)


Frames = list[tuple[int, bytes, int, int]]
"""Type, payload, flags, stream."""

BROKEN: dict[str, tuple[Frames, ErrorCode]] = {
    "frame too large": ([(FrameType.PING, bytes(16385), 0, 0)], ErrorCode.FRAME_SIZE_ERROR),
    "ping of 7 bytes": ([(FrameType.PING, bytes(7), 0, 0)], ErrorCode.FRAME_SIZE_ERROR),
    "settings of 5 bytes": ([(FrameType.SETTINGS, bytes(5), 0, 0)], ErrorCode.FRAME_SIZE_ERROR),
    "settings ack with content": ([(FrameType.SETTINGS, bytes(6), ACK, 0)], ErrorCode.FRAME_SIZE_ERROR),
    "window of 2^31": (
        [(FrameType.SETTINGS, struct.pack(">HI", 4, 1 << 31), 0, 0)],
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "frames of 1 byte": ([(FrameType.SETTINGS, struct.pack(">HI", 5, 1), 0, 0)], ErrorCode.PROTOCOL_ERROR),
    "window update of 0": ([(FrameType.WINDOW_UPDATE, bytes(4), 0, 0)], ErrorCode.PROTOCOL_ERROR),
    "window overflow": (
        [(FrameType.WINDOW_UPDATE, b"\x7f\xff\xff\xff", 0, 0)],
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "data without stream": ([(FrameType.DATA, b"x", 0, 0)], ErrorCode.PROTOCOL_ERROR),
    "data on an idle stream": ([(FrameType.DATA, b"x", 0, 7)], ErrorCode.PROTOCOL_ERROR),
    "reset of an idle stream": ([(FrameType.RST_STREAM, bytes(4), 0, 7)], ErrorCode.PROTOCOL_ERROR),
    "push promise": ([(FrameType.PUSH_PROMISE, bytes(4), 0, 1)], ErrorCode.PROTOCOL_ERROR),
    "lone continuation": ([(FrameType.CONTINUATION, b"", END_HEADERS, 1)], ErrorCode.PROTOCOL_ERROR),
    "interrupted headers": (
        [(FrameType.HEADERS, block(), 0, 1), (FrameType.PING, bytes(8), 0, 0)],
        ErrorCode.PROTOCOL_ERROR,
    ),
    "headers on a server's stream": ([(FrameType.HEADERS, block(), END_HEADERS, 2)], ErrorCode.PROTOCOL_ERROR),
    "padding over the frame": ([(FrameType.HEADERS, b"\x09abc", END_HEADERS | PADDED, 1)], ErrorCode.PROTOCOL_ERROR),
    "unreadable headers": ([(FrameType.HEADERS, b"\xff" * 30, END_HEADERS, 1)], ErrorCode.COMPRESSION_ERROR),
    "large headers": (
        [(FrameType.HEADERS, bytes(3000), END_HEADERS, 1)],
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "headers that grow": (
        [(FrameType.HEADERS, block(*(("k", "v" * 100) for _ in range(40))), END_HEADERS, 1)],
        ErrorCode.COMPRESSION_ERROR,
    ),
    "ping flood": ([(FrameType.PING, bytes(8), ACK, 0)] * 200, ErrorCode.ENHANCE_YOUR_CALM),
    "rapid resets": (
        [
            frame
            for number in range(1, 401, 2)
            for frame in (
                (FrameType.HEADERS, block(), END_HEADERS, number),
                (FrameType.RST_STREAM, bytes(4), 0, number),
            )
        ],
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
    "empty data flood": (
        [(FrameType.HEADERS, block(), END_HEADERS, 1)] + [(FrameType.DATA, b"", 0, 1)] * 200,
        ErrorCode.ENHANCE_YOUR_CALM,
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_ends_the_connection_with_its_code(case: str) -> None:
    """GOAWAY names it, and the socket is closed; the next connection is served."""
    frames, code = BROKEN[case]
    # So few that 200 are too many also where the machine takes seconds for them.
    limits = Limits(frame_bytes=16384, header_bytes=2048, num_control_frames_per_second=10)
    with serving(echo, limits=limits) as port:
        peer = FramePeer.connect(port)
        peer.greet()
        for kind, payload, flags, stream_id in frames:
            peer.send(kind, payload, flags=flags, stream_id=stream_id)

        assert int.from_bytes(peer.wait_for(FrameType.GOAWAY)[4:8], "big") == code
        assert list(peer.frames()) == []
        peer.socket.close()
        listener = Listener()
        with connected(port) as connection:
            connection.call(PATH, b"alive", listener)
            assert listener.result().code is Code.OK


ODD: dict[str, Frames] = {
    "unknown frame": [(77, b"whatever", 0xFF, 0)],
    "priority": [(FrameType.PRIORITY, bytes(5), 0, 1)],
    "unknown setting": [(FrameType.SETTINGS, struct.pack(">HI", 99, 5), 0, 0)],
    "window update of a stream that is over": [(FrameType.WINDOW_UPDATE, b"\x00\x00\x00\x05", 0, 99)],
    "no header table": [(FrameType.SETTINGS, struct.pack(">HI", 1, 0), 0, 0)],
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_odd_is_ignored(case: str) -> None:
    """The call after it is served: padded, with priority, its headers and its message cut into many frames."""
    head = block(("x", "y" * 300))
    pieces = [head[start : start + 20] for start in range(0, len(head), 20)]
    with serving(echo, limits=SMALL) as port:
        peer = FramePeer.connect(port)
        peer.greet()
        for kind, payload, flags, stream_id in ODD[case]:
            peer.send(kind, payload, flags=flags, stream_id=stream_id)
        peer.send(
            FrameType.HEADERS, b"\x03" + bytes(5) + pieces[0] + bytes(3), flags=PADDED | HAS_PRIORITY, stream_id=1
        )
        for index, piece in enumerate(pieces[1:], 2):
            flags = END_HEADERS if index == len(pieces) else 0
            peer.send(FrameType.CONTINUATION, piece, flags=flags, stream_id=1)
        for index in range(len(_REQUEST)):
            flags = PADDED | (END_STREAM if index == len(_REQUEST) - 1 else 0)
            peer.send(FrameType.DATA, b"\x02" + _REQUEST[index : index + 1] + b"..", flags=flags, stream_id=1)

        assert peer.wait_for(FrameType.DATA) == _REQUEST
        peer.socket.close()


REFUSED = {
    "no POST": (block(method="GET"), Code.UNIMPLEMENTED),
    "no gRPC": (block(content_type="text/html"), Code.INTERNAL),
    "compressed": (block(("grpc-encoding", "gzip")), Code.UNIMPLEMENTED),
    "bad timeout": (block(("grpc-timeout", "soon")), Code.INTERNAL),
    "bad base64": (block(("x-bin", "*")), Code.INTERNAL),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_is_none_is_refused_by_status(case: str) -> None:
    """The connection goes on."""
    head, code = REFUSED[case]
    with serving(echo, limits=SMALL) as port:
        peer = FramePeer.connect(port)
        peer.greet()
        peer.send(FrameType.HEADERS, head, flags=END_HEADERS, stream_id=1)
        peer.send(FrameType.DATA, _REQUEST, flags=END_STREAM, stream_id=1)

        trailers = dict(hpack.Decoder().decode(peer.wait_for(FrameType.HEADERS)))
        assert int(trailers["grpc-status"]) == code
        peer.send(FrameType.PING, b"12345678")
        assert peer.wait_for(FrameType.PING) == b"12345678"
        peer.socket.close()


BODIES = {
    "compressed": b"\x01\x00\x00\x00\x02hi",
    "two messages": _REQUEST * 2,
    "half a message": _REQUEST[:-1],
    "half a prefix": _REQUEST[:3],
    "nothing": b"",
}


@pytest.mark.parametrize("case", BODIES)
def test_a_request_that_is_not_one_message_is_refused(case: str) -> None:
    """With a status; nothing waits for the rest."""
    with serving(echo, limits=SMALL) as port:
        peer = FramePeer.connect(port)
        peer.greet()
        peer.send(FrameType.HEADERS, block(), flags=END_HEADERS, stream_id=1)
        peer.send(FrameType.DATA, BODIES[case], flags=END_STREAM, stream_id=1)

        trailers = dict(hpack.Decoder().decode(peer.wait_for(FrameType.HEADERS)))
        assert trailers["grpc-status"] in ("12", "13")
        peer.socket.close()


def test_more_streams_than_allowed_are_refused_one_by_one() -> None:
    """REFUSED_STREAM: the caller may try again; the others go on."""
    with serving(echo, limits=SMALL) as port:
        peer = FramePeer.connect(port)
        peer.greet()
        for number in range(1, 11, 2):
            peer.send(FrameType.HEADERS, block(), flags=END_HEADERS, stream_id=number)

        assert int.from_bytes(peer.wait_for(FrameType.RST_STREAM), "big") == ErrorCode.REFUSED_STREAM
        peer.send(FrameType.DATA, _REQUEST, flags=END_STREAM, stream_id=1)
        assert peer.wait_for(FrameType.DATA) == _REQUEST
        peer.socket.close()


def test_a_ping_is_answered_while_a_handler_computes() -> None:
    """A prefill of several seconds is no dead peer."""
    begun, may_end = threading.Event(), threading.Event()

    def compute(call: ServerCall) -> None:
        begun.set()
        assert may_end.wait(SECONDS)
        call.send(call.request)

    with serving(compute, limits=SMALL) as port:
        peer = FramePeer.connect(port)
        peer.greet()
        peer.send(FrameType.HEADERS, block(), flags=END_HEADERS, stream_id=1)
        peer.send(FrameType.DATA, _REQUEST, flags=END_STREAM, stream_id=1)
        assert begun.wait(SECONDS)
        peer.send(FrameType.PING, b"12345678")

        assert peer.wait_for(FrameType.PING) == b"12345678"
        may_end.set()
        assert peer.wait_for(FrameType.DATA) == _REQUEST
        peer.socket.close()


def test_a_connection_that_never_greets_is_closed() -> None:
    """Silence is not held open."""
    with serving(echo, timing=QUICK) as port:
        peer = FramePeer.connect(port)
        peer.socket.sendall(b"PRI * ")

        assert list(peer.frames()) == []
        peer.socket.close()
