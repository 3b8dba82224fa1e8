"""TLS on a socket that one thread reads while others write.

OpenSSL's connection object serves one thread at a time, and Python's SSLSocket leaves that to its user. Here the object
works on memory under a lock, and the socket itself is read and written outside of it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import cast

from baton.grpc_sockets.sockets import Buffer, close_quietly

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
        """Return the stream of an accepted connection after its handshake.

        Raises:
            OSError: If the handshake fails or takes too long.
        """
        stream = cls(sock, context, server_hostname=None)
        stream._shake_hands(time.monotonic() + timeout_seconds)
        return stream

    @classmethod
    def connect(
        cls, sock: socket.socket, context: ssl.SSLContext, server_name: str, timeout_seconds: float
    ) -> TlsStream:
        """Return the stream to a server after the handshake.

        Raises:
            OSError: If the handshake fails, takes too long, or the server's certificate is not trusted.
        """
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
