"""A small HTTP/1.1 server: listens, tracks connections, drains."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from functools import partial
from types import TracebackType

from baton.errors import ConfigurationError
from baton.gateway.http.connection import Connections, ErrorBody, Handler, HttpConnection, HttpLimits
from baton.gateway.http.messages import HeldBytes

log = logging.getLogger(__name__)

_BACKLOG = 4096


class HttpServer:
    """Serves a handler inside `async with`; leaving it cuts what still runs, so `drain` first."""

    def __init__(
        self, handler: Handler, error_body: ErrorBody, limits: HttpLimits, held: HeldBytes | None = None
    ) -> None:
        """Make it.

        Args:
            handler: Answers requests.
            error_body: Makes the body of an answer to what is no proper HTTP.
            limits: Of each connection.
            held: Counts the bytes of requests; None: the largest body of one has room.
        """
        self._handler = handler
        self._error_body = error_body
        self._limits = limits
        self._connections = Connections(held or HeldBytes(limits.max_body_bytes))
        self._tasks = asyncio.TaskGroup()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> HttpServer:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections.all():
            connection.abort()
        # Told of no error: a task group would wrap it in a group, and the caller expects it as it is.
        await self._tasks.__aexit__(None, None, None)

    async def start(self, host: str, port: int, *, is_shared: bool = False, tls: ssl.SSLContext | None = None) -> int:
        """Listen; return the port.

        Args:
            host: Address.
            port: 0: any free one.
            is_shared: Whether other processes listen on the same port.
            tls: What connections show to clients; None: they are plain.

        Raises:
            ConfigurationError: If the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        connect = partial(HttpConnection, self._handler, self._error_body, self._limits, self._connections, self._tasks)
        handshake_seconds = self._limits.header_timeout_seconds if tls else None
        try:
            self._server = await loop.create_server(
                connect,
                host,
                port,
                backlog=_BACKLOG,
                reuse_port=is_shared or None,
                ssl=tls,
                ssl_handshake_timeout=handshake_seconds,
            )
        except OSError as error:
            raise ConfigurationError(f"http_port: cannot listen on {host}:{port}: {error}") from error
        self.port = int(self._server.sockets[0].getsockname()[1])
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
        self._server.close()
        for connection in self._connections.all():
            connection.close_when_idle()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._connections.wait_empty()
        for connection in self._connections.all():
            connection.abort()
        log.info("http_stopped port=%d", self.port)


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one and return it; 0 where the system has no such limit.

    Shells set 1024, which a thousand idle clients use up: then nobody else gets in.
    """
    try:
        import resource
    except ImportError:  # Windows
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:  # macOS names a hard limit that it does not grant
            log.warning("open_files_limit_kept limit=%d cause=%r", soft, str(error))
            return soft
    log.info("open_files_limit limit=%d", hard)
    return hard
