"""Sockets as this package uses them: blocking, with kernel timeouts, whole buffers in and out."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from typing import Protocol, cast

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


_RECORD_BYTES = 64 << 10
_CHUNK_BYTES = 256 << 10
"""Cleartext encrypted before it goes out: bounds the memory for cipher text."""


class TlsStream:
    """A TLS connection with the methods of a socket that `ByteStream` names. Made by `accept` or `connect`."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, *, server_hostname: str | None) -> None:
        context.set_alpn_protocols(["h2"])
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._lock = threading.Lock()
        self._sending = threading.Lock()

    @classmethod
    def accept(cls, sock: socket.socket, context: ssl.SSLContext, timeout_seconds: float) -> TlsStream:
        """Return the stream of an accepted connection after its handshake; raise OSError if that fails."""
        stream = cls(sock, context, server_hostname=None)
        stream._shake_hands(time.monotonic() + timeout_seconds)
        return stream

    @classmethod
    def connect(
        cls, sock: socket.socket, context: ssl.SSLContext, server_name: str, timeout_seconds: float
    ) -> TlsStream:
        """Return the stream to a server after the handshake; raise OSError if that fails, or it is not trusted."""
        stream = cls(sock, context, server_hostname=server_name)
        stream._shake_hands(time.monotonic() + timeout_seconds)
        return stream

    def peer_names(self) -> Sequence[str]:
        """Return the common names of the peer's certificate."""
        certificate = self._tls.getpeercert() or {}
        subject = cast("Sequence[Sequence[tuple[str, str]]]", certificate.get("subject", ()))
        return [value for names in subject for name, value in names if name == "commonName"]

    def recv_into(self, buffer: memoryview, num_bytes: int, flags: int, /) -> int:  # noqa: ARG002
        """Receive some bytes; 0 at the end."""
        while True:
            try:
                with self._lock:
                    return cast(int, self._tls.read(num_bytes, buffer))  # with a buffer it returns the count
            except ssl.SSLWantReadError:
                self._feed()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def sendmsg(self, buffers: Sequence[Buffer], ancillary: Sequence[tuple[int, int, bytes]], flags: int, /) -> int:  # noqa: ARG002
        """Send all of the buffers; return how much that was."""
        num_bytes = 0
        with self._sending:
            for buffer in buffers:
                view = memoryview(buffer)
                for start in range(0, len(view), _CHUNK_BYTES):
                    with self._lock:
                        self._tls.write(view[start : start + _CHUNK_BYTES])
                    self._flush()
                num_bytes += len(view)
        return num_bytes

    def shutdown(self, how: int, /) -> None:
        """Wake whoever waits for the socket."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()

    def _feed(self) -> None:
        """Hand what the socket has to OpenSSL, and what that answers to the socket."""
        if self._outgoing.pending:
            with self._sending:
                self._flush()
        data = self._socket.recv(_RECORD_BYTES)
        with self._lock:
            if data:
                self._incoming.write(data)
            else:
                self._incoming.write_eof()

    def _flush(self) -> None:
        with self._lock:
            data = self._outgoing.read()
        self._socket.sendall(data)

    def _shake_hands(self, deadline: float) -> None:
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                with contextlib.suppress(BlockingIOError):
                    self._feed()
                if time.monotonic() >= deadline:
                    close_quietly(self._socket)
                    raise TimeoutError("the TLS handshake takes too long") from None
        self._flush()
        if self._tls.selected_alpn_protocol() not in ("h2", None):
            raise ConnectionError("the peer speaks no HTTP/2")
