"""Frames and gRPC messages on a socket: read through a look-ahead, written from any thread, payloads never copied.

Small parts are read ahead, payloads go straight into the caller's memory. The gRPC messages in the DATA frames of a
stream are cut out on one side and framed on the other.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from baton.grpc_sockets.frames import (
    DEFAULT_FRAME_BYTES,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER_BYTES,
    FrameHeader,
    FrameType,
    pack_header,
    unpack_header,
)
from baton.grpc_sockets.headers import CallError, Code, HeaderEncoder
from baton.grpc_sockets.sockets import AT_ONCE, WAIT_FOR_ALL, Buffer, ByteStream, close_quietly, shut_down_quietly

_LOOK_AHEAD_BYTES = 1024
"""Read at once where little is wanted: a frame's header, small frames behind it, and the head of a large one."""


class PeerClosedError(ConnectionError):
    """The peer has closed the connection."""


class FrameReader:
    """Reads one connection, in one thread.

    Two system calls per large frame: one brings its header and its first bytes, which are copied, the other the rest.
    `on_silence` is called when nothing has come for the socket's receive timeout; it raises to give up.
    """

    def __init__(self, stream: ByteStream, on_silence: Callable[[], None]) -> None:
        self._stream, self._on_silence = stream, on_silence
        self._ahead = memoryview(bytearray(_LOOK_AHEAD_BYTES))
        self._begin = self._end = 0  # what was read ahead is [begin, end)
        self.num_silences = 0
        """Times in a row that nothing has come; whoever is called then may set it back."""

    def header(self) -> FrameHeader:
        """Return the next frame's header; its payload must be read before the next call."""
        return unpack_header(self.read(FRAME_HEADER_BYTES))

    def read(self, num_bytes: int) -> bytes:
        """Return the next bytes; for payloads that are small or bounded by the caller."""
        if self._end - self._begin >= num_bytes:
            self._begin += num_bytes
            return bytes(self._ahead[self._begin - num_bytes : self._begin])
        buffer = bytearray(num_bytes)
        self.read_into(memoryview(buffer))
        return bytes(buffer)

    def skip(self, num_bytes: int) -> None:
        """Read bytes that nobody wants."""
        while num_bytes:
            num_bytes -= len(self.read(min(num_bytes, _LOOK_AHEAD_BYTES)))

    def read_into(self, buffer: memoryview) -> None:
        """Fill a buffer with the next bytes; raise PeerClosedError if the connection ends, OSError if it breaks."""
        while buffer:
            if self._begin < self._end:
                num_bytes = min(len(buffer), self._end - self._begin)
                buffer[:num_bytes] = self._ahead[self._begin : self._begin + num_bytes]
                self._begin += num_bytes
                buffer = buffer[num_bytes:]
            elif len(buffer) >= _LOOK_AHEAD_BYTES:
                buffer = buffer[self._receive(buffer, WAIT_FOR_ALL) :]
            else:
                self._begin, self._end = 0, self._receive(self._ahead, 0)

    def _receive(self, buffer: memoryview, flags: int) -> int:
        while True:
            try:
                num_bytes = self._stream.recv_into(buffer, len(buffer), flags)
            except BlockingIOError:
                self.num_silences += 1
                self._on_silence()
                continue
            self.num_silences = 0
            if num_bytes == 0:
                raise PeerClosedError("the peer closed the connection")
            return num_bytes


_MOST_BUFFERS = 512
"""Buffers given to one system call; POSIX allows 1024 on the systems that matter."""
_MOST_POSTED_BYTES = 1 << 20
"""Control frames that may wait for a peer that takes nothing; then the connection is dead."""


class FrameWriter:
    """Writes one connection. Frames of one `send` are not interrupted by others.

    Invariant: what `post` was given goes out when nobody else writes, before the next frame of anybody else's at the
    latest. Header blocks are compressed under the lock: their order on the wire is the compressor's.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._posted: deque[Buffer] = deque()
        self._encoder = HeaderEncoder()
        self.frame_bytes = DEFAULT_FRAME_BYTES
        """Largest payload that the peer takes."""

    def limit_table(self, num_bytes: int) -> None:
        """Keep to the peer's setting for header compression."""
        with self._lock:
            self._encoder.limit_table(num_bytes)

    def send(self, *buffers: Buffer) -> None:
        """Write whole frames until the kernel has them; raise OSError if the connection is broken, or takes nothing."""
        with self._lock:
            self._flush_posted()
            self._write(buffers)
        self._try_posted()

    def send_headers(self, stream_id: int, headers: Iterable[tuple[str, str]], *, is_last: bool) -> None:
        """Write a header block, in as many frames as the peer needs; raise OSError as `send`."""
        with self._lock:
            self._flush_posted()
            block = self._encoder.encode(headers)
            pieces = [block[start : start + self.frame_bytes] for start in range(0, len(block), self.frame_bytes)]
            frames: list[Buffer] = []
            for index, piece in enumerate(pieces):
                flags = (END_HEADERS if index == len(pieces) - 1 else 0) | (END_STREAM if is_last and not index else 0)
                kind = FrameType.CONTINUATION if index else FrameType.HEADERS
                frames += (pack_header(len(piece), kind, flags, stream_id), piece)
            self._write(frames)
        self._try_posted()

    def post(self, frame: bytes) -> None:
        """Write a control frame, now or after who writes; raise OSError if too much waits, or it is broken."""
        self._posted.append(frame)
        if sum(map(len, self._posted)) > _MOST_POSTED_BYTES:
            raise ConnectionError("the peer takes no control frames")
        self._try_posted()

    def close(self) -> None:
        """Close the socket, when nobody writes to it any more; further writes raise OSError."""
        shut_down_quietly(self._stream)
        with self._lock:
            close_quietly(self._stream)

    def _try_posted(self) -> None:
        while self._posted and self._lock.acquire(blocking=False):
            try:
                is_done = self._post_all()
            finally:
                self._lock.release()
            if not is_done:
                threading.Thread(target=self._flush_later, name="h2-flush", daemon=True).start()
                return

    def _post_all(self) -> bool:
        """Write what was posted as far as there is room; return whether that was all. Under the lock."""
        while self._posted:
            frame = self._posted.popleft()
            try:
                num_sent = self._stream.sendmsg([frame], [], AT_ONCE)
            except BlockingIOError:
                num_sent = 0
            if num_sent < len(frame):
                self._posted.appendleft(memoryview(frame)[num_sent:])
                return False
        return True

    def _flush_later(self) -> None:
        with contextlib.suppress(OSError):  # the reading thread sees the broken connection as well, and ends it
            self.send()

    def _flush_posted(self) -> None:
        while self._posted:
            self._write([self._posted.popleft()])

    def _write(self, buffers: Sequence[Buffer]) -> None:
        views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        index = 0
        while index < len(views):
            try:
                num_sent = self._stream.sendmsg(views[index : index + _MOST_BUFFERS], [], 0)
            except BlockingIOError as error:
                raise TimeoutError("the peer takes nothing from its socket") from error
            while index < len(views) and num_sent >= len(views[index]):
                num_sent -= len(views[index])
                index += 1
            if num_sent:
                views[index] = views[index][num_sent:]


PREFIX_BYTES = 5


def message_prefix(num_bytes: int) -> bytes:
    """Return what stands before an uncompressed message."""
    return struct.pack(">BI", 0, num_bytes)


def message_bytes(data: bytes | bytearray | memoryview, begin: int, max_bytes: int) -> int:
    """Return the size of the message whose prefix begins there; raise CallError if it is compressed or too large."""
    is_compressed, num_bytes = struct.unpack_from(">BI", data, begin)
    if is_compressed:
        raise CallError(Code.UNIMPLEMENTED, "compressed messages are not supported")
    if num_bytes > max_bytes:
        raise CallError(Code.RESOURCE_EXHAUSTED, f"a message of {num_bytes} bytes; {max_bytes} are the most")
    return int(num_bytes)


class MessageAssembler:
    """Receives the messages of one stream into memory that `allocate` gives, wherever frames cut them."""

    def __init__(
        self, allocate: Callable[[int], memoryview], deliver: Callable[[memoryview], None], max_bytes: int
    ) -> None:
        self._allocate, self._deliver = allocate, deliver
        self._max_bytes = max_bytes
        self._prefix = memoryview(bytearray(PREFIX_BYTES))
        self._message: memoryview | None = None
        self._missing = self._prefix

    @property
    def is_between_messages(self) -> bool:
        """Return whether no message has begun."""
        return self._message is None and len(self._missing) == PREFIX_BYTES

    def fill(self, reader: FrameReader, num_bytes: int) -> None:
        """Receive a stream's next bytes; raise CallError if a message is no good, OSError if the connection breaks."""
        while num_bytes:
            target = self._missing[:num_bytes]
            reader.read_into(target)
            num_bytes -= len(target)
            self._missing = self._missing[len(target) :]
            if not self._missing:
                try:
                    self._part_is_complete()
                except BaseException:
                    reader.skip(num_bytes)
                    raise

    def _part_is_complete(self) -> None:
        if self._message is None:
            num_bytes = message_bytes(self._prefix, 0, self._max_bytes)
            self._message = self._missing = self._allocate(num_bytes)
            if num_bytes:
                return
        message, self._message, self._missing = self._message, None, self._prefix
        self._deliver(message)


class MessageParts:
    """A message that is sent piece by piece, without being joined."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        self.num_bytes = PREFIX_BYTES + sum(map(len, views))
        """Bytes that have not been cut off yet, the prefix included."""
        self._views = deque([memoryview(message_prefix(self.num_bytes - PREFIX_BYTES)), *views])

    def cut(self, num_bytes: int) -> list[memoryview]:
        """Take the next bytes, at most `self.num_bytes`."""
        self.num_bytes -= num_bytes
        pieces: list[memoryview] = []
        while num_bytes:
            first = self._views.popleft()
            if len(first) > num_bytes:
                self._views.appendleft(first[num_bytes:])
                first = first[:num_bytes]
            pieces.append(first)
            num_bytes -= len(first)
        return pieces
