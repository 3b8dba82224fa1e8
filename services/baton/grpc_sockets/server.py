"""A server: accepts connections and serves each in threads."""

from __future__ import annotations

import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from baton.grpc_sockets.connection import SILENCE_SECONDS
from baton.grpc_sockets.incoming_request import ServerBudgets
from baton.grpc_sockets.limits import Limits, ServerLimits, Timing
from baton.grpc_sockets.server_connection import Handler, ServerConnection
from baton.grpc_sockets.sockets import ByteStream, TlsStream, close_quietly, prepare, shut_down_quietly

log = logging.getLogger(__name__)

_BACKLOG = 128
_LOOK_SECONDS = 0.5
"""Pause between looks at connections that take too long over something."""
_TELL_SECONDS = 1.0
"""Least time between two warnings that connections are refused."""
_PATIENT = Timing(connect_seconds=5.0, idle_seconds=10.0, ping_seconds=5.0)


@dataclass(eq=False, slots=True)
class _Accepted:
    """A connection from its acceptance to its end, its handshake included."""

    sock: socket.socket
    host: str
    due_seconds: float
    """When its handshake must be over, monotonic."""
    connection: ServerConnection | None = None
    """Once it is."""

    def is_overdue(self) -> bool:
        due_seconds = self.connection.due_seconds if self.connection else self.due_seconds
        return time.monotonic() >= due_seconds


class GrpcSocketServer:
    """Serves unary-request gRPC calls. Use: construct, `start`, then `drain` once.

    `handlers` are by path, "/package.Service/Method"; `tls` returns the context of each connection, None: they are
    plain.
    """

    def __init__(
        self,
        host: str,
        port: int,
        handlers: Mapping[str, Handler],
        *,
        limits: Limits | None = None,
        server_limits: ServerLimits | None = None,
        timing: Timing = _PATIENT,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._address = (host, port)
        self._handlers = handlers
        self._limits = limits or Limits(message_bytes=16 << 20)
        self._timing, self._tls = timing, tls
        self._lock = threading.Lock()
        self._server_limits = server_limits or ServerLimits()
        self._budgets = ServerBudgets(self._server_limits)
        self._accepted: set[_Accepted] = set()
        self._told_refusal_at = -math.inf
        self._listener: socket.socket | None = None
        self._draining = threading.Event()

    def start(self) -> int:
        """Bind and serve; return the port. Raises OSError if the address cannot be bound."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        self._listener = socket.create_server(self._address, family=family, backlog=_BACKLOG)
        threading.Thread(target=self._accept, args=(self._listener,), name="h2-accept", daemon=True).start()
        threading.Thread(target=self._watch, name="h2-watch", daemon=True).start()
        return int(self._listener.getsockname()[1])

    def drain(self, grace_seconds: float) -> None:
        """Take no further calls, wait for those that run, cut those that outlast the grace."""
        self._draining.set()
        if self._listener is not None:
            close_quietly(self._listener)
        deadline = time.monotonic() + grace_seconds
        connections = [each.connection for each in self._current() if each.connection is not None]
        for connection in connections:
            connection.drain()
        for connection in connections:
            connection.wait_idle(max(0.0, deadline - time.monotonic()))
            connection.shut_down()
        for connection in connections:
            connection.wait_idle(self._timing.connect_seconds)

    def _current(self) -> list[_Accepted]:
        with self._lock:
            return list(self._accepted)

    def _accept(self, listener: socket.socket) -> None:
        while not self._draining.is_set():
            try:
                sock, address = listener.accept()
            except OSError:
                if self._draining.is_set():
                    return
                log.exception("h2_accept_failed")
                time.sleep(0.1)  # out of file descriptors, say: others may be closed meanwhile
                continue
            accepted = _Accepted(sock, str(address[0]), time.monotonic() + self._timing.connect_seconds)
            try:
                if self._admit(accepted):
                    threading.Thread(target=self._serve, args=(accepted,), name="h2-server", daemon=True).start()
                    continue
            except RuntimeError:  # no thread can be started
                log.exception("h2_accept_failed")
                self._forget(accepted)
            sock.close()

    def _admit(self, accepted: _Accepted) -> bool:
        """Count a connection, unless there are too many; return whether it was counted."""
        limits = self._server_limits
        with self._lock:
            num_of_host = sum(each.host == accepted.host for each in self._accepted)
            if len(self._accepted) < limits.num_connections and num_of_host < limits.num_address_connections:
                self._accepted.add(accepted)
                return True
        if (now := time.monotonic()) - self._told_refusal_at >= _TELL_SECONDS:
            self._told_refusal_at = now
            log.warning("h2_connection_refused host=%s connections=%d", accepted.host, num_of_host)
        return False

    def _forget(self, accepted: _Accepted) -> None:
        with self._lock:
            self._accepted.discard(accepted)

    def _watch(self) -> None:
        """Cut off who takes too long: no thread that waits for bytes can be kept waiting by single ones."""
        while not self._draining.wait(_LOOK_SECONDS):
            for accepted in self._current():
                if accepted.is_overdue():
                    log.info("h2_connection_overdue host=%s", accepted.host)
                    shut_down_quietly(accepted.sock)

    def _serve(self, accepted: _Accepted) -> None:
        try:
            self._run(accepted)
        finally:
            self._forget(accepted)

    def _run(self, accepted: _Accepted) -> None:
        sock = accepted.sock
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
        connection = ServerConnection(stream, self._handlers, self._limits, self._timing, peer_names, self._budgets)
        accepted.connection = connection
        if self._draining.is_set():
            connection.shut_down()
        connection.run()
