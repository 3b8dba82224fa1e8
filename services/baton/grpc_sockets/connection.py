"""One HTTP/2 connection: what both sides have in common. Everything is read in one thread, written from any."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from baton.grpc_sockets.flow_control import ReceiveWindow, SendWindows
from baton.grpc_sockets.frame_io import FrameReader, FrameWriter, MessageParts
from baton.grpc_sockets.frames import (
    ACK,
    DEFAULT_FRAME_BYTES,
    DEFAULT_WINDOW_BYTES,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    LARGEST_FRAME_BYTES,
    PADDED,
    SETTINGS_ACK,
    ControlBudget,
    ErrorCode,
    FrameHeader,
    FrameType,
    ProtocolError,
    Setting,
    goaway_frame,
    number_of,
    pack_header,
    parse_settings,
    ping_frame,
    settings_frame,
    window_update_frame,
)
from baton.grpc_sockets.headers import HeaderDecoder
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.sockets import Buffer, ByteStream, shut_down_quietly

log = logging.getLogger(__name__)

SILENCE_SECONDS = 0.25
"""Receive timeout of sockets: how often a silent connection is thought about."""
_PING = b"baton-h2"


class Connection(ABC):
    """One connection, read by the thread that calls `run`.

    Invariants: the reading thread never waits for a call's taker, and for the peer only while it answers it; no more is
    held for a peer than `Limits` says.
    """

    def __init__(self, stream: ByteStream, limits: Limits, timing: Timing) -> None:
        self.limits = limits
        self.timing = timing
        self.windows = SendWindows()
        self.writer = FrameWriter(stream)
        self.greeted = threading.Event()
        """Set when the peer's first settings have come, or the connection has ended."""
        self._stream = stream
        self._reader = FrameReader(stream, self._on_silence)
        self._decoder = HeaderDecoder(limits.header_bytes)
        self._window = ReceiveWindow(limits.connection_window_bytes, limits.connection_window_bytes)
        self._num_silences = 0
        self._control = ControlBudget(limits.num_control_frames_per_second)

    def run(self) -> None:
        """Read until the connection ends, whatever ends it; then every call on it has ended too."""
        cause: Exception | None = None
        try:
            self._greet()
            while True:
                self._take_frame(self._reader.header())
        except ProtocolError as error:
            cause = error
            self._say_goodbye(error.code, str(error))
        except OSError as error:
            cause = error
        except Exception as error:  # the edge of the thread: a bug here ends this connection only
            log.exception("h2_connection_failed")
            cause = error
            self._say_goodbye(ErrorCode.INTERNAL_ERROR, "internal error")
        finally:
            self.greeted.set()
            self._ended(cause or ConnectionError("the connection was closed"))
            self.windows.close_all()
            self.writer.close()

    def shut_down(self) -> None:
        """Break the connection; the reading thread ends it."""
        shut_down_quietly(self._stream)

    def send_message(
        self, stream_id: int, parts: Sequence[Buffer], deadline: float | None = None, *, is_last: bool = False
    ) -> None:
        """Send a message as DATA frames, waiting for the peer's windows.

        Raises:
            StreamEndedError: If the stream ends meanwhile.
            TimeoutError: At the deadline.
            OSError: If the connection breaks.
        """
        message = MessageParts(parts)
        while message.num_bytes:
            num_bytes = self.windows.take(stream_id, min(message.num_bytes, self.writer.frame_bytes), deadline)
            is_end = is_last and num_bytes == message.num_bytes
            header = pack_header(num_bytes, FrameType.DATA, END_STREAM if is_end else 0, stream_id)
            self.writer.send(header, *message.cut(num_bytes))

    @abstractmethod
    def _greet(self) -> None:
        """Exchange what comes before the first frame of a call."""

    @abstractmethod
    def _has_calls(self) -> bool:
        """Return whether a call is open, so that a silent peer matters."""

    @abstractmethod
    def _on_headers(self, stream_id: int, headers: Mapping[str, str], *, is_last: bool) -> None:
        """Take a header block."""

    @abstractmethod
    def _on_data(self, stream_id: int, num_bytes: int, padding: int, *, is_last: bool) -> None:
        """Read a DATA frame's payload, then its padding."""

    @abstractmethod
    def _on_reset(self, stream_id: int, code: int) -> None:
        """Take the end of a stream."""

    @abstractmethod
    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        """Take note that the peer takes no further stream."""

    @abstractmethod
    def _on_setting(self, key: int, value: int) -> None:
        """Take a setting that is not of this class's business."""

    @abstractmethod
    def _ended(self, cause: Exception) -> None:
        """End all calls."""

    def _send_settings(self, *extra: tuple[Setting, int], before: bytes = b"") -> None:
        settings = {
            Setting.INITIAL_WINDOW_SIZE: self.limits.stream_window_bytes,
            Setting.MAX_FRAME_SIZE: self.limits.frame_bytes,
            Setting.MAX_HEADER_LIST_SIZE: self.limits.header_bytes,
            **dict(extra),
        }
        more = self.limits.connection_window_bytes - DEFAULT_WINDOW_BYTES
        self.writer.send(before, settings_frame(settings), window_update_frame(0, more) if more > 0 else b"")

    def _opened(self, stream_id: int, num_bytes: int) -> None:
        """Open a window of the peer; 0 bytes: not yet."""
        if num_bytes:
            self.writer.post(window_update_frame(stream_id, num_bytes))

    def _take_frame(self, header: FrameHeader) -> None:
        self._num_silences = 0
        if header.num_bytes > self.limits.frame_bytes:
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {header.num_bytes} bytes")
        if header.frame_type == FrameType.DATA:
            self._take_data(header)
        elif header.frame_type == FrameType.HEADERS:
            self._take_headers(header)
        elif header.frame_type in (FrameType.PUSH_PROMISE, FrameType.CONTINUATION):
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"{FrameType(header.frame_type).name} out of place")
        elif header.num_bytes > DEFAULT_FRAME_BYTES:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, f"a control frame of {header.num_bytes} bytes")
        else:
            self._take_control(header, self._reader.read(header.num_bytes))

    def _take_data(self, header: FrameHeader) -> None:
        if header.stream_id == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "DATA without a stream")
        padding, num_bytes = 0, header.num_bytes
        if header.flags & PADDED:
            padding = self._reader.read(1)[0] if num_bytes else 0
            num_bytes -= 1 + padding
            if num_bytes < 0:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
        if not header.num_bytes:
            self._control.spend()
        self._opened(0, self._window.received(header.num_bytes))
        self._on_data(header.stream_id, num_bytes, padding, is_last=bool(header.flags & END_STREAM))

    def _take_headers(self, header: FrameHeader) -> None:
        block, flags = self._reader.read(self._checked_block(header.num_bytes)), header.flags
        if header.stream_id == 0:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "HEADERS without a stream")
        begin = (1 if flags & PADDED else 0) + (5 if flags & HAS_PRIORITY else 0)
        end = len(block) - (block[0] if flags & PADDED and block else 0)
        if begin > end:
            raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
        block = block[begin:end]
        while not flags & END_HEADERS:
            more = self._reader.header()
            if more.frame_type != FrameType.CONTINUATION or more.stream_id != header.stream_id:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            if not more.num_bytes:
                self._control.spend()
            block += self._reader.read(self._checked_block(more.num_bytes + len(block)) - len(block))
            flags |= more.flags & END_HEADERS
        headers = self._decoder.decode(block)
        self._on_headers(header.stream_id, headers, is_last=bool(header.flags & END_STREAM))

    def _checked_block(self, num_bytes: int) -> int:
        if num_bytes > self.limits.header_bytes:
            raise ProtocolError(ErrorCode.ENHANCE_YOUR_CALM, f"a header block of {num_bytes} bytes")
        return num_bytes

    def _take_control(self, header: FrameHeader, payload: bytes) -> None:
        kind, stream_id = header.frame_type, header.stream_id
        if kind == FrameType.WINDOW_UPDATE:
            self.windows.add(stream_id, number_of(payload, FrameType.WINDOW_UPDATE) & 0x7FFFFFFF)
            return
        self._control.spend()
        if kind == FrameType.SETTINGS:
            self._take_settings(payload, stream_id, is_ack=bool(header.flags & ACK))
        elif kind == FrameType.PING:
            if len(payload) != 8 or stream_id:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes on stream {stream_id}")
            if not header.flags & ACK:
                self.writer.post(ping_frame(payload, is_ack=True))
        elif kind == FrameType.RST_STREAM:
            if stream_id == 0:
                raise ProtocolError(ErrorCode.PROTOCOL_ERROR, "RST_STREAM without a stream")
            self._on_reset(stream_id, number_of(payload, FrameType.RST_STREAM))
        elif kind == FrameType.GOAWAY:
            if len(payload) < 8 or stream_id:
                raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
            self._on_goaway(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, int.from_bytes(payload[4:8], "big"))

    def _take_settings(self, payload: bytes, stream_id: int, *, is_ack: bool) -> None:
        if stream_id or (is_ack and payload):
            raise ProtocolError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS on stream {stream_id}, {len(payload)} bytes")
        if is_ack:
            return
        for key, value in parse_settings(payload):
            if key == Setting.INITIAL_WINDOW_SIZE:
                self.windows.set_initial(value)
            elif key == Setting.MAX_FRAME_SIZE:
                if not DEFAULT_FRAME_BYTES <= value <= LARGEST_FRAME_BYTES:
                    raise ProtocolError(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
                self.writer.frame_bytes = min(value, self.limits.frame_bytes)
            elif key == Setting.HEADER_TABLE_SIZE:
                self.writer.limit_table(value)
            else:
                self._on_setting(key, value)
        self.writer.post(SETTINGS_ACK)
        self.greeted.set()

    def _on_silence(self) -> None:
        """Ask a silent peer for a sign of life while calls are open; give it up when it gives none."""
        is_greeted = self.greeted.is_set()
        self._num_silences = self._num_silences + 1 if self._has_calls() or not is_greeted else 0
        before, now = (self._num_silences - 1) * SILENCE_SECONDS, self._num_silences * SILENCE_SECONDS
        if not is_greeted:
            if now >= self.timing.connect_seconds:
                raise TimeoutError(f"the peer said nothing for {now:g} seconds")
            return
        if before < self.timing.idle_seconds <= now:
            self.writer.post(ping_frame(_PING, is_ack=False))
        if now >= self.timing.idle_seconds + self.timing.ping_seconds:
            raise TimeoutError(f"the peer was silent for {now:g} seconds")

    def _say_goodbye(self, code: ErrorCode, message: str) -> None:
        with contextlib.suppress(OSError):  # a peer that is gone needs none
            self.writer.post(goaway_frame(self._last_stream_id(), code, message))

    def _last_stream_id(self) -> int:
        """Return the last stream of the peer's that was taken."""
        return 0
