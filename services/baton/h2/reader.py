"""Reads frames from a socket: small parts through a look-ahead, payloads straight into the caller's memory."""

from __future__ import annotations

from collections.abc import Callable

from baton.h2.protocol import FRAME_HEADER_BYTES, FrameHeader, unpack_header
from baton.h2.sockets import WAIT_FOR_ALL, ByteStream

_LOOK_AHEAD_BYTES = 1024
"""Read at once where little is wanted: a frame's header, small frames behind it, and the head of a large one."""


class PeerClosedError(ConnectionError):
    """The peer has closed the connection."""


class FrameReader:
    """Reads one connection, in one thread.

    Two system calls per large frame: one brings its header and its first bytes, which are copied, the other the rest.

    Args:
        stream: The connection.
        on_silence: Called when nothing has come for the socket's receive timeout; raises to give up.
    """

    def __init__(self, stream: ByteStream, on_silence: Callable[[], None]) -> None:
        self._stream = stream
        self._on_silence = on_silence
        self._ahead = memoryview(bytearray(_LOOK_AHEAD_BYTES))
        self._begin = self._end = 0  # what was read ahead is [begin, end)

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
        """Fill a buffer with the next bytes.

        Raises:
            PeerClosedError: If the connection ends before.
            OSError: If it breaks.
        """
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
                self._on_silence()
                continue
            if num_bytes == 0:
                raise PeerClosedError("the peer closed the connection")
            return num_bytes
