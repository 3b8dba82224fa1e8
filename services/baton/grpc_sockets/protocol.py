"""The constants and small frames of HTTP/2 (RFC 9113)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of every client."""
FRAME_HEADER_BYTES = 9
DEFAULT_FRAME_BYTES = 16_384
"""Largest payload that every peer takes."""
LARGEST_FRAME_BYTES = (1 << 24) - 1
"""Largest payload that a peer may declare."""
DEFAULT_WINDOW_BYTES = 65_535
"""Window of a connection, and of a stream unless settings say otherwise."""
LARGEST_WINDOW_BYTES = (1 << 31) - 1
LARGEST_STREAM_ID = (1 << 31) - 1
"""After it, a connection takes no further stream."""

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20


class FrameType(IntEnum):
    """Frame types of section 6."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Setting(IntEnum):
    """Settings of section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Error codes of section 7."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class ProtocolError(Exception):
    """The peer broke a rule of HTTP/2: its connection is closed with GOAWAY."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code


class FrameHeader(NamedTuple):
    """The first 9 bytes of a frame."""

    num_bytes: int
    """Payload."""
    frame_type: int
    """A `FrameType`, or one that is not known and to be ignored."""
    flags: int
    """Meaning by type."""
    stream_id: int
    """0: the connection."""


_HEADER = struct.Struct(">BHBBI")


def pack_header(num_bytes: int, frame_type: FrameType, flags: int, stream_id: int) -> bytes:
    """Return the first 9 bytes of a frame."""
    return _HEADER.pack(num_bytes >> 16, num_bytes & 0xFFFF, frame_type, flags, stream_id)


def unpack_header(data: bytes | bytearray) -> FrameHeader:
    """Return the header of 9 bytes."""
    high, low, frame_type, flags, stream_id = _HEADER.unpack(data)
    return FrameHeader(high << 16 | low, frame_type, flags, stream_id & 0x7FFFFFFF)


def settings_frame(settings: Mapping[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(struct.pack(">HI", key, value) for key, value in settings.items())
    return pack_header(len(payload), FrameType.SETTINGS, 0, 0) + payload


def parse_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the settings of a frame's payload.

    Raises:
        ProtocolError: If it does not consist of whole settings.
    """
    if len(payload) % 6:
        raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    return struct.iter_unpack(">HI", payload)


SETTINGS_ACK = pack_header(0, FrameType.SETTINGS, ACK, 0)


def ping_frame(payload: bytes, *, is_ack: bool) -> bytes:
    """Return a PING frame with 8 bytes."""
    return pack_header(8, FrameType.PING, ACK if is_ack else 0, 0) + payload


def window_update_frame(stream_id: int, num_bytes: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return pack_header(4, FrameType.WINDOW_UPDATE, 0, stream_id) + struct.pack(">I", num_bytes)


def reset_frame(stream_id: int, code: ErrorCode) -> bytes:
    """Return a RST_STREAM frame."""
    return pack_header(4, FrameType.RST_STREAM, 0, stream_id) + struct.pack(">I", code)


def goaway_frame(last_stream_id: int, code: ErrorCode, message: str = "") -> bytes:
    """Return a GOAWAY frame; its message is for people."""
    text = message.encode()[:256]
    return pack_header(8 + len(text), FrameType.GOAWAY, 0, 0) + struct.pack(">II", last_stream_id, code) + text


def number_of(payload: bytes, frame_type: FrameType) -> int:
    """Return the number that is a frame's whole payload.

    Raises:
        ProtocolError: If it has another size.
    """
    if len(payload) != 4:
        raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"{frame_type.name} of {len(payload)} bytes")
    return int.from_bytes(payload, "big")
