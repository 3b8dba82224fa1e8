"""A server: accepts connections and serves each in threads."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from baton.grpc_sockets.connection import SILENCE_SECONDS
from baton.grpc_sockets.limits import Limits, Timing
from baton.grpc_sockets.server_connection import Handler, ServerConnection
from baton.grpc_sockets.sockets import ByteStream, close_quietly, prepare
from baton.grpc_sockets.tls import TlsStream

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""Connections at once; more are closed when they are accepted."""
_BACKLOG = 128
_PATIENT = Timing(connect_seconds=5.0, idle_seconds=10.0, ping_seconds=5.0)


class GrpcSocketServer:
    """Serves unary-request gRPC calls. Use: construct, `start`, then `drain` once.

    Args:
        host: Address to listen on.
        port: Port; 0: any free one.
        handlers: By path, "/package.Service/Method".
        limits: Bounds of each connection.
        timing: How long callers are waited for.
        tls: Returns the context, with certificate and key, for each connection; None: connections are plain.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Mapping[str, Handler],
        *,
        limits: Limits | None = None,
        timing: Timing = _PATIENT,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._address = (host, port)
        self._handlers = handlers
        self._limits = limits or Limits(message_bytes=16 << 20)
        self._timing = timing
        self._tls = tls
        self._lock = threading.Lock()
        self._connections: set[ServerConnection] = set()
        self._listener: socket.socket | None = None
        self._is_draining = False

    def start(self) -> int:
        """Bind and serve; return the port.

        Raises:
            OSError: If the address cannot be bound.
        """
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._listener = socket.create_server(self._address, family=family, backlog=_BACKLOG)
        threading.Thread(target=self._accept, args=(self._listener,), name="h2-accept", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def drain(self, grace_seconds: float) -> None:
        """Take no further calls, wait for those that run, cut those that outlast the grace."""
        self._is_draining = True
        if self._listener is not None:
            close_quietly(self._listener)
        deadline = time.monotonic() + grace_seconds
        connections = self._current()
        for connection in connections:
            connection.drain()
        for connection in connections:
            connection.wait_idle(max(0.0, deadline - time.monotonic()))
            connection.shut_down()
        for connection in connections:
            connection.wait_idle(self._timing.connect_seconds)

    def _current(self) -> list[ServerConnection]:
        with self._lock:
            return list(self._connections)

    def _accept(self, listener: socket.socket) -> None:
        while not self._is_draining:
            try:
                sock, _ = listener.accept()
            except OSError:
                if self._is_draining:
                    return
                log.exception("h2_accept_failed")
                time.sleep(0.1)  # out of file descriptors, say: others may be closed meanwhile
                continue
            if len(self._current()) >= MAX_CONNECTIONS:
                log.warning("h2_connection_refused limit=%d", MAX_CONNECTIONS)
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), name="h2-server", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            prepare(sock, receive_seconds=SILENCE_SECONDS, send_seconds=self._timing.send_seconds)
            stream: ByteStream = sock
            peer_names: Sequence[str] | None = None
            if self._tls is not None:
                stream = secured = TlsStream.accept(sock, self._tls(), self._timing.connect_seconds)
                peer_names = secured.peer_names()
        except Exception as error:  # whatever the peer, or a file of a certificate, has wrong ends this connection only
            log.info("h2_handshake_failed cause=%s", error)
            sock.close()
            return
        connection = ServerConnection(stream, self._handlers, self._limits, self._timing, peer_names)
        with self._lock:
            self._connections.add(connection)
        try:
            if self._is_draining:
                connection.shut_down()
            connection.run()
        finally:
            with self._lock:
                self._connections.discard(connection)
