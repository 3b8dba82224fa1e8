"""The frames of HTTP/2 (RFC 9113): their constants, small ones made, and any read within limits."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from baton.grpc_sockets.limits import Limits

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""First bytes of every client."""
FRAME_HEADER_BYTES = 9
DEFAULT_FRAME_BYTES = 16_384
"""Largest payload that every peer takes."""
FRAME_SIZES = range(DEFAULT_FRAME_BYTES, 1 << 24)
"""Largest payloads that a peer may declare."""
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
    """Yield the settings of a frame's payload; raise ProtocolError if it does not consist of whole settings."""
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
    """Return the number that is a frame's whole payload; raise ProtocolError if it has another size."""
    if len(payload) != 4:
        raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"{frame_type.name} of {len(payload)} bytes")
    return int.from_bytes(payload, "big")


class Frame(NamedTuple):
    """A frame without padding and priority; a header block is whole."""

    frame_type: int
    """A `FrameType`, or one that is not known and to be ignored."""
    flags: int
    stream_id: int
    """0: the connection."""
    payload: bytes
    num_window_bytes: int = 0
    """Bytes that it takes of the windows, if it is a DATA frame: the payload with its padding."""

    @property
    def is_last(self) -> bool:
        """Return whether a DATA or HEADERS frame is its stream's last."""
        return bool(self.flags & END_STREAM)


class FrameChecker:
    """Checks the frames of one connection, in their order, and puts header blocks together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._block: Frame | None = None
        self._control = ControlBudget(limits.num_control_frames_per_second)

    def spend(self) -> None:
        """Count a frame that costs work and no window to speak of; raise ProtocolError if there were too many."""
        self._control.spend()

    def check_data(self, stream_id: int, num_bytes: int) -> None:
        """Check a DATA frame of so many bytes, padding included; raise ProtocolError if it may not come."""
        if self._block is not None:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
        if stream_id == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "DATA without a stream")
        if not num_bytes:
            self._control.spend()

    def check(self, frame: Frame) -> Frame | None:
        """Return what is to be taken of a frame but DATA, None: nothing; raise ProtocolError if it breaks a rule."""
        kind = frame.frame_type
        if self._block is not None or kind == FrameType.CONTINUATION:
            return self._continued(frame)
        if kind in (FrameType.HEADERS, FrameType.RST_STREAM) and frame.stream_id == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"{FrameType(kind).name} without a stream")
        if kind == FrameType.HEADERS:
            return self._whole(frame._replace(payload=_unpadded(frame, 5 if frame.flags & HAS_PRIORITY else 0)))
        if kind == FrameType.PUSH_PROMISE:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE out of place")
        if kind != FrameType.WINDOW_UPDATE:
            self._control.spend()
            _check_control(frame)
        return frame

    def _continued(self, frame: Frame) -> Frame | None:
        block = self._block
        if block is None or frame.frame_type != FrameType.CONTINUATION or frame.stream_id != block.stream_id:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted, or continued without one")
        self._control.spend()
        flags = block.flags | frame.flags & END_HEADERS
        return self._whole(block._replace(flags=flags, payload=block.payload + frame.payload))

    def _whole(self, frame: Frame) -> Frame | None:
        if len(frame.payload) > self._limits.header_bytes:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of {len(frame.payload)} bytes")
        is_whole = frame.flags & END_HEADERS
        self._block = None if is_whole else frame
        return frame if is_whole else None


class FrameParser:
    """Cuts a connection's bytes into frames, of `DEFAULT_FRAME_BYTES` at most, as the peer knows untold."""

    def __init__(self, limits: Limits) -> None:
        self._checker = FrameChecker(limits)
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that bytes complete; raise ProtocolError if they break a rule that needs no calls."""
        data, begin = self._rest + data, 0
        while len(data) - begin >= FRAME_HEADER_BYTES:
            num_bytes, frame_type, flags, stream_id = unpack_header(data[begin : begin + FRAME_HEADER_BYTES])
            if num_bytes > DEFAULT_FRAME_BYTES:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {num_bytes} bytes")
            end = begin + FRAME_HEADER_BYTES + num_bytes
            if end > len(data):
                break
            payload = data[begin + FRAME_HEADER_BYTES : end]
            begin = end
            frame = self._checked(Frame(frame_type, flags, stream_id, payload, num_bytes))
            if frame is not None:
                yield frame
        self._rest = data[begin:]

    def _checked(self, frame: Frame) -> Frame | None:
        if frame.frame_type != FrameType.DATA:
            return self._checker.check(frame)
        self._checker.check_data(frame.stream_id, frame.num_window_bytes)
        return frame._replace(payload=_unpadded(frame, 0)) if frame.flags & PADDED else frame


def _unpadded(frame: Frame, begin: int) -> bytes:
    payload, end = frame.payload, len(frame.payload)
    if frame.flags & PADDED:
        begin, end = begin + 1, end - (payload[0] if payload else 1)
    if begin > end:
        raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[begin:end]


def _check_control(frame: Frame) -> None:
    kind, num_bytes = frame.frame_type, len(frame.payload)
    is_wrong = (
        (kind == FrameType.PING and (num_bytes != 8 or frame.stream_id))
        or (kind == FrameType.GOAWAY and (num_bytes < 8 or frame.stream_id))
        or (kind == FrameType.SETTINGS and (frame.stream_id or (frame.flags & ACK and num_bytes)))
    )
    if is_wrong:
        text = f"{FrameType(kind).name} of {num_bytes} bytes on stream {frame.stream_id}"
        raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, text)


class ControlBudget:
    """Counts frames that cost work and no window: so many a second on average, and as many at once."""

    def __init__(self, num_per_second: float) -> None:
        self._rate = num_per_second
        self._num_left = float(num_per_second)
        self._seen_at = time.monotonic()

    def spend(self) -> None:
        """Count one; raise ProtocolError if there were too many."""
        now = time.monotonic()
        self._num_left = min(self._rate, self._num_left + self._rate * (now - self._seen_at)) - 1
        self._seen_at = now
        if self._num_left < 0:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames")
