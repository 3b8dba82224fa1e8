"""Writes frames to a socket, from any thread, without copying payloads."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from baton.h2.headers import HeaderEncoder
from baton.h2.protocol import DEFAULT_FRAME_BYTES, END_HEADERS, END_STREAM, FrameType, pack_header
from baton.h2.sockets import AT_ONCE, Buffer, ByteStream, close_quietly, shut_down_quietly

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
        """Write whole frames; returns when the kernel has them.

        Raises:
            OSError: If the connection is broken, or the peer takes nothing for the socket's send timeout.
        """
        with self._lock:
            self._flush_posted()
            self._write(buffers)
        self._try_posted()

    def send_headers(self, stream_id: int, headers: Iterable[tuple[str, str]], *, is_last: bool) -> None:
        """Write a header block, in as many frames as the peer needs.

        Raises:
            OSError: As `send`.
        """
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
        """Write a control frame without waiting: now, or when the thread that writes at the moment is done.

        Raises:
            OSError: If the connection is broken or too much waits already.
        """
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
