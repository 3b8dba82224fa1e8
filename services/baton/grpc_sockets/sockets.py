"""Sockets as this package uses them: blocking, with kernel timeouts, whole buffers in and out."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

WAIT_FOR_ALL = getattr(socket, "MSG_WAITALL", 0)
"""Flag of `recv_into`: return when the buffer is full."""
AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)
"""Flag of `sendmsg`: send what there is room for."""


class ByteStream(Protocol):
    """The part of a socket that is used; TLS offers it as well."""

    def recv_into(self, buffer: memoryview, num_bytes: int, flags: int, /) -> int:
        """Receive; 0 at the end. Raises BlockingIOError when nothing came within the receive timeout."""

    def sendmsg(self, buffers: Sequence[Buffer], ancillary: Sequence[tuple[int, int, bytes]], flags: int, /) -> int:
        """Send; return how much. Raises BlockingIOError when nothing went within the send timeout."""

    def shutdown(self, how: int, /) -> None:
        """Wake whoever waits for the socket."""

    def close(self) -> None:
        """Give the socket back."""


def prepare(sock: socket.socket, *, receive_seconds: float, send_seconds: float) -> None:
    """Set a connected socket up.

    The timeouts are the kernel's: with Python's own every call would be preceded by a poll, and a receive could not
    wait for all of a buffer.
    """
    sock.settimeout(None)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(receive_seconds))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(send_seconds))


def shut_down_quietly(stream: ByteStream) -> None:
    """End a stream that may have ended already; threads that wait for it wake, and its descriptor stays theirs."""
    with contextlib.suppress(OSError):
        stream.shutdown(socket.SHUT_RDWR)


def close_quietly(stream: ByteStream) -> None:
    """End a stream that no other thread uses, and give its descriptor back."""
    shut_down_quietly(stream)
    with contextlib.suppress(OSError):
        stream.close()


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
