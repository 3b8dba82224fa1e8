"""A small HTTP/1.1 server: listens, tracks connections, drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import resource
import socket
import ssl
import sys

from baton.errors import ConfigurationError
from baton.gateway.http.connection import Connections, ErrorBody, Handler, HttpConnection, HttpLimits
from baton.gateway.http.messages import HeldBytes

log = logging.getLogger(__name__)

_BACKLOG = 4096
_MOST_AT_ONCE = 64
"""Connections accepted in one turn of the event loop."""
_RETRY_SECONDS = 0.1


class HttpServer:
    """Serves a handler inside `async with`; leaving it cuts what still runs, so `drain` first."""

    def __init__(
        self, handler: Handler, error_body: ErrorBody, limits: HttpLimits, held: HeldBytes | None = None
    ) -> None:
        self._handler, self._error_body = handler, error_body
        self._limits = limits
        self._connections = Connections(held or HeldBytes(limits.max_body_bytes), limits)
        self._tasks = asyncio.TaskGroup()
        self._server: asyncio.Server | None = None
        self._listeners: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._told_refusal_at = -math.inf
        self.port = 0

    async def __aenter__(self) -> HttpServer:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop_accepting()
        for connection in self._connections.all():
            connection.abort()
        # Told of no error: a task group would wrap it in a group, and the caller expects it as it is.
        await self._tasks.__aexit__(None, None, None)

    async def start(self, host: str, port: int, *, is_shared: bool = False, tls: ssl.SSLContext | None = None) -> int:
        """Listen; return the port: 0 is any free one, which processes share; raise ConfigurationError if it cannot."""
        loop = asyncio.get_running_loop()
        try:
            # It binds, and never accepts: what it has accepted would be counted after its handshake, not before.
            self._server = await loop.create_server(
                asyncio.Protocol, host, port, reuse_port=is_shared or None, start_serving=False
            )
            self._listeners = [each.dup() for each in self._server.sockets]
            for listener in self._listeners:
                listener.setblocking(False)
                listener.listen(_BACKLOG)
        except OSError as error:
            raise ConfigurationError(f"http_port: cannot listen on {host}:{port}: {error}") from error
        for listener in self._listeners:
            self._accepting.add(self._tasks.create_task(self._accept(listener, tls)))
        self.port = int(self._listeners[0].getsockname()[1])
        log.info("http_listening host=%s port=%d tls=%s", host, self.port, tls is not None)
        return self.port

    async def drain(self, grace_seconds: float, *, pause_seconds: float = 0.0) -> None:
        """Say that the end is near; then take no new connections, let answers finish, and cut what outlasts the grace.

        Args:
            grace_seconds: For running answers, once nothing new is taken.
            pause_seconds: For which everything is still served, with `Connection: close`. A connection that is closed
                without it may be closed under the next request, which its client has sent without looking.
        """
        assert self._server is not None
        self._connections.is_leaving = True
        await asyncio.sleep(pause_seconds)
        self._stop_accepting()
        for connection in self._connections.all():
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._connections.wait_empty()
        for connection in self._connections.all():
            connection.abort()
        log.info("http_stopped port=%d", self.port)

    def _stop_accepting(self) -> None:
        """Take no connection any more; those in their handshake are closed."""
        for task in self._accepting:
            task.cancel()
        for listener in self._listeners:
            listener.close()
        if self._server is not None:
            self._server.close()

    async def _accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                for _ in range(_MOST_AT_ONCE):
                    sock, address = await loop.sock_accept(listener)
                    self._take(sock, str(address[0]), tls)
            except OSError as error:  # out of file descriptors, say: others may be closed meanwhile
                log.warning("http_accept_failed cause=%r", str(error))
                await asyncio.sleep(_RETRY_SECONDS)
            await asyncio.sleep(0)  # there may be thousands, none of which has to be waited for

    def _take(self, sock: socket.socket, host: str, tls: ssl.SSLContext | None) -> None:
        """Open a connection, unless there are too many."""
        if self._connections.enter(host):
            task = self._tasks.create_task(self._open(sock, host, tls))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
            return
        sock.close()
        now = asyncio.get_running_loop().time()
        if now - self._told_refusal_at >= 1:
            self._told_refusal_at = now
            log.warning("http_connections_refused host=%s", host)

    async def _open(self, sock: socket.socket, host: str, tls: ssl.SSLContext | None) -> None:
        connection = HttpConnection(self._handler, self._error_body, self._limits, self._connections, self._tasks, host)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=tls,
                ssl_handshake_timeout=self._limits.header_timeout_seconds if tls else None,
            )
        except OSError as error:  # of the handshake, its time included
            log.debug("http_handshake_failed host=%s cause=%r", host, str(error))
        finally:
            if not connection.is_made:
                sock.close()
                self._connections.leave(host)


def open_files_limit() -> int:
    """Return how many files this process may have open; a great number where the system has no such limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one and return it.

    Shells set 1024, which a thousand idle clients use up: then nobody else gets in.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS names a hard limit that it does not grant
            log.warning("open_files_limit_kept limit=%d cause=%r", soft, str(error))
            return soft
    log.info("open_files_limit limit=%d", hard)
    return hard
