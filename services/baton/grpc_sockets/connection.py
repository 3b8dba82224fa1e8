"""One HTTP/2 connection: what all of them do with the peer's frames, and those that a thread reads."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from baton.grpc_sockets import frames
from baton.grpc_sockets.flow_control import PeerWindows, ReceiveWindow, SendWindows
from baton.grpc_sockets.frame_io import FrameReader, FrameWriter, MessageParts
from baton.grpc_sockets.headers import SILENT, HeaderDecoder
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.sockets import Buffer, ByteStream, shut_down_quietly

log = logging.getLogger(__name__)

SILENCE_SECONDS = 0.25
"""Receive timeout of sockets: how often a silent connection is thought about."""
PING = b"baton-h2"
"""What a ping of this side carries."""


class SilentPeerError(TimeoutError):
    """The peer gave no sign of life."""


class Connection(ABC):
    """What a connection does with the peer's frames, whether a thread reads them or an event loop."""

    def __init__(self, limits: Limits, timing: Timing, windows: PeerWindows) -> None:
        self.limits, self.timing = limits, timing
        self._peer_windows = windows
        self._decoder = HeaderDecoder(limits.header_bytes)
        self._window = ReceiveWindow(limits.connection_window_bytes, limits.connection_window_bytes)

    @abstractmethod
    def post(self, frames: bytes) -> None:
        """Send control frames without waiting; raise OSError if the connection is broken."""

    @abstractmethod
    def _on_headers(self, stream_id: int, headers: Mapping[str, str], *, is_last: bool) -> None:
        """Take a header block."""

    @abstractmethod
    def _on_reset(self, stream_id: int, code: int) -> None:
        """Take the end of a stream."""

    @abstractmethod
    def _on_goaway(self, last_stream_id: int, code: int) -> None:
        """Take note that the peer takes no further stream."""

    def _on_setting(self, key: int, value: int) -> None:  # noqa: B027 - most settings concern neither side
        """Take a setting that is not of this class's business; MAX_FRAME_SIZE is checked."""

    @abstractmethod
    def _on_greeting(self) -> None:
        """Take note that the peer has told its settings, the first or others."""

    def _greeting(self, frame_bytes: int, *extra: tuple[frames.Setting, int]) -> bytes:
        """Return the settings of this side, and the update that makes the connection's window as large as wanted."""
        settings = {
            frames.Setting.INITIAL_WINDOW_SIZE: self.limits.stream_window_bytes,
            frames.Setting.MAX_FRAME_SIZE: frame_bytes,
            frames.Setting.MAX_HEADER_LIST_SIZE: self.limits.header_bytes,
            **dict(extra),
        }
        more = self.limits.connection_window_bytes - frames.DEFAULT_WINDOW_BYTES
        return frames.settings_frame(settings) + (frames.window_update_frame(0, more) if more > 0 else b"")

    def _opened(self, stream_id: int, num_bytes: int) -> None:
        """Open a window of the peer; 0 bytes: not yet."""
        if num_bytes:
            self.post(frames.window_update_frame(stream_id, num_bytes))

    def _take(self, frame: frames.Frame) -> None:
        """Take a frame other than DATA, checked."""
        kind, flags, stream_id, payload, _ = frame
        if kind == frames.FrameType.HEADERS:
            self._on_headers(stream_id, self._decoder.decode(payload), is_last=frame.is_last)
        elif kind == frames.FrameType.WINDOW_UPDATE:
            self._peer_windows.add(stream_id, frames.number_of(payload, frames.FrameType.WINDOW_UPDATE) & 0x7FFFFFFF)
        elif kind == frames.FrameType.SETTINGS:
            if not flags & frames.ACK:
                self._take_settings(payload)
        elif kind == frames.FrameType.PING:
            if not flags & frames.ACK:
                self.post(frames.ping_frame(payload, is_ack=True))
        elif kind == frames.FrameType.RST_STREAM:
            self._on_reset(stream_id, frames.number_of(payload, frames.FrameType.RST_STREAM))
        elif kind == frames.FrameType.GOAWAY:
            self._on_goaway(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, int.from_bytes(payload[4:8], "big"))

    def _take_settings(self, payload: bytes) -> None:
        for key, value in frames.parse_settings(payload):
            if key == frames.Setting.INITIAL_WINDOW_SIZE:
                self._peer_windows.set_initial(value)
            elif key == frames.Setting.MAX_FRAME_SIZE and value not in frames.FRAME_SIZES:
                raise frames.ProtocolError(frames.ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
            else:
                self._on_setting(key, value)
        self.post(frames.SETTINGS_ACK)
        self._on_greeting()


class ThreadConnection(Connection):
    """One connection, read by the thread that calls `run`, written from any.

    Invariants: the reading thread never waits for a call's taker, and for the peer only while it answers it; no more is
    held for a peer than `Limits` says.
    """

    def __init__(self, stream: ByteStream, limits: Limits, timing: Timing) -> None:
        self.windows = SendWindows()
        super().__init__(limits, timing, self.windows)
        self.writer = FrameWriter(stream)
        self.greeted = threading.Event()
        """Set when the peer's first settings have come, or the connection has ended."""
        self._last_stream_id = 0  # of the peer's, that was taken
        self._stream = stream
        self._reader = FrameReader(stream, self._on_silence)
        self._checker = frames.FrameChecker(limits)

    def run(self) -> None:
        """Read until the connection ends, whatever ends it; then every call on it has ended too."""
        cause: Exception | None = None
        try:
            self._greet()
            while True:
                self._take_next(self._reader.header())
        except frames.ProtocolError as error:
            cause = error
            self._say_goodbye(error.code, str(error))
        except OSError as error:
            cause = error
        except Exception as error:  # the edge of the thread: a bug here ends this connection only
            log.exception("h2_connection_failed")
            cause = error
            self._say_goodbye(frames.ErrorCode.INTERNAL_ERROR, "internal error")
        finally:
            self.greeted.set()
            self._ended(cause or ConnectionError("the connection was closed"))
            self.windows.close_all()
            self.writer.close()

    def shut_down(self) -> None:
        """Break the connection; the reading thread ends it."""
        shut_down_quietly(self._stream)

    def post(self, frames: bytes) -> None:
        """Send control frames without waiting; as `FrameWriter.post`."""
        self.writer.post(frames)

    def send_message(
        self, stream_id: int, parts: Sequence[Buffer], deadline: float | None = None, *, is_last: bool = False
    ) -> None:
        """Send DATA frames as windows allow; raise StreamEndedError, TimeoutError or OSError if it has to end."""
        message = MessageParts(parts)
        while message.num_bytes:
            num_bytes = self.windows.take(stream_id, min(message.num_bytes, self.writer.frame_bytes), deadline)
            is_end = is_last and num_bytes == message.num_bytes
            header = frames.pack_header(num_bytes, frames.FrameType.DATA, frames.END_STREAM if is_end else 0, stream_id)
            self.writer.send(header, *message.cut(num_bytes))

    @abstractmethod
    def _greet(self) -> None:
        """Exchange what comes before the first frame of a call."""

    @abstractmethod
    def _has_calls(self) -> bool:
        """Return whether a call is open, so that a silent peer matters."""

    @abstractmethod
    def _on_data(self, stream_id: int, num_bytes: int, padding: int, *, is_last: bool) -> None:
        """Read a DATA frame's payload, then its padding."""

    @abstractmethod
    def _ended(self, cause: Exception) -> None:
        """End all calls."""

    def _on_setting(self, key: int, value: int) -> None:
        if key == frames.Setting.MAX_FRAME_SIZE:
            self.writer.frame_bytes = min(value, self.limits.frame_bytes)
        elif key == frames.Setting.HEADER_TABLE_SIZE:
            self.writer.limit_table(value)
        super()._on_setting(key, value)

    def _on_greeting(self) -> None:
        self.greeted.set()

    def _take_next(self, header: frames.FrameHeader) -> None:
        """Read the payload of a frame, bounded by what frames of its type may hold, and take it."""
        num_bytes, kind, flags, stream_id = header
        if num_bytes > self.limits.frame_bytes:
            raise frames.ProtocolError(frames.ErrorCode.FRAME_SIZE_ERROR, f"a frame of {num_bytes} bytes")
        if kind == frames.FrameType.DATA:
            self._take_data(header)
            return
        is_block = kind in (frames.FrameType.HEADERS, frames.FrameType.CONTINUATION)
        if num_bytes > (self.limits.header_bytes if is_block else frames.DEFAULT_FRAME_BYTES):
            raise frames.ProtocolError(frames.ErrorCode.ENHANCE_YOUR_CALM, f"a control frame of {num_bytes} bytes")
        frame = self._checker.check(frames.Frame(kind, flags, stream_id, self._reader.read(num_bytes)))
        if frame is not None:
            self._take(frame)

    def _take_data(self, header: frames.FrameHeader) -> None:
        self._checker.check_data(header.stream_id, header.num_bytes)
        padding, num_bytes = 0, header.num_bytes
        if header.flags & frames.PADDED:
            padding = self._reader.read(1)[0] if num_bytes else 0
            num_bytes -= 1 + padding
            if num_bytes < 0:
                raise frames.ProtocolError(frames.ErrorCode.PROTOCOL_ERROR, "more padding than frame")
        self._opened(0, self._window.received(header.num_bytes))
        self._on_data(header.stream_id, num_bytes, padding, is_last=bool(header.flags & frames.END_STREAM))

    def _on_silence(self) -> None:
        """Ask a silent peer for a sign of life while calls are open; give it up when it gives none."""
        is_greeted = self.greeted.is_set()
        if is_greeted and not self._has_calls():
            self._reader.num_silences = 0
        before, now = (self._reader.num_silences - 1) * SILENCE_SECONDS, self._reader.num_silences * SILENCE_SECONDS
        if not is_greeted:
            if now >= self.timing.connect_seconds:
                raise TimeoutError(f"the peer said nothing for {now:g} seconds")
            return
        if before < self.timing.idle_seconds <= now:
            self.post(frames.ping_frame(PING, is_ack=False))
        if now >= self.timing.idle_seconds + self.timing.ping_seconds:
            raise SilentPeerError(f"{SILENT} for {now:g} seconds")

    def _say_goodbye(self, code: frames.ErrorCode, message: str) -> None:
        with contextlib.suppress(OSError):  # a peer that is gone needs none
            self.post(frames.goaway_frame(self._last_stream_id, code, message))
