"""Frames out of the bytes of a connection, as they come, within limits.

What keeps a peer from costing work for nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from baton.grpc_sockets.headers import HeaderDecoder
from baton.grpc_sockets.limits import Limits
from baton.grpc_sockets.protocol import (
    ACK,
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER_BYTES,
    HAS_PRIORITY,
    PADDED,
    ErrorCode,
    FrameType,
    ProtocolError,
    unpack_header,
)


class Frame(NamedTuple):
    """A frame without padding and priority; a header block is whole."""

    frame_type: int
    """A `FrameType`, or one that is not known and to be ignored."""
    flags: int
    """Meaning by type."""
    stream_id: int
    """0: the connection."""
    payload: bytes
    """What it carries."""
    num_window_bytes: int = 0
    """Bytes that it takes of the windows, if it is a DATA frame."""


class FrameParser:
    """Reads one connection. Frames are at most `DEFAULT_FRAME_BYTES` long, as the peer was told by saying nothing else.

    Args:
        limits: Bounds.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decoder = HeaderDecoder(limits.header_bytes)
        self._rest = b""
        self._block: Frame | None = None
        self._control = ControlBudget(limits.num_control_frames_per_second)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that bytes complete.

        Raises:
            ProtocolError: If they break a rule that needs no knowledge of calls.
        """
        data, begin = self._rest + data, 0
        while len(data) - begin >= FRAME_HEADER_BYTES:
            num_bytes, frame_type, flags, stream_id = unpack_header(data[begin : begin + FRAME_HEADER_BYTES])
            if num_bytes > DEFAULT_FRAME_BYTES:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {num_bytes} bytes")
            end = begin + FRAME_HEADER_BYTES + num_bytes
            if end > len(data):
                break
            frame = self._checked(Frame(frame_type, flags, stream_id, data[begin + FRAME_HEADER_BYTES : end]))
            begin = end
            if frame is not None:
                yield frame
        self._rest = data[begin:]

    def headers(self, block: bytes) -> Mapping[str, str]:
        """Return the headers of a whole block; every block must be read, in order.

        Raises:
            ProtocolError: If it is none.
        """
        return self._decoder.decode(block)

    @staticmethod
    def ends_stream(flags: int) -> bool:
        """Return whether a DATA or HEADERS frame is its stream's last."""
        return bool(flags & END_STREAM)

    def _checked(self, frame: Frame) -> Frame | None:
        """Return what is to be taken of a frame; None: not yet anything."""
        kind = frame.frame_type
        if self._block is not None or kind == FrameType.CONTINUATION:
            return self._continued(frame)
        if kind in (FrameType.DATA, FrameType.HEADERS, FrameType.RST_STREAM) and frame.stream_id == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"{FrameType(kind).name} without a stream")
        if kind == FrameType.DATA:
            if not frame.payload:
                self._control.spend()
            payload = _unpadded(frame, 0) if frame.flags & PADDED else frame.payload
            return frame._replace(payload=payload, num_window_bytes=len(frame.payload))
        if kind == FrameType.HEADERS:
            frame = frame._replace(payload=_unpadded(frame, 5 if frame.flags & HAS_PRIORITY else 0))
            return self._whole(frame)
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
    """Counts frames that cost work and no window: so many a second on average, and as many at once.

    Args:
        num_per_second: How many are taken.
    """

    def __init__(self, num_per_second: float) -> None:
        self._rate = num_per_second
        self._num_left = float(num_per_second)
        self._seen_at = time.monotonic()

    def spend(self) -> None:
        """Count one.

        Raises:
            ProtocolError: If there were too many.
        """
        now = time.monotonic()
        self._num_left = min(self._rate, self._num_left + self._rate * (now - self._seen_at)) - 1
        self._seen_at = now
        if self._num_left < 0:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames")
