"""One HTTP/1.1 connection: requests in, one at a time to the handler, answers out, and every wait bounded."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast

from baton.gateway.http.content_coding import GzipResponse, accepts_gzip
from baton.gateway.http.messages import CONTINUE, HeldBytes, HttpError, HttpRequest, RequestReader
from baton.gateway.http.response import ClientGoneError, HttpResponse
from baton.gateway.http.rpc_refusal import HTTP2_START, Http2Refusal

log = logging.getLogger(__name__)


class Handler(Protocol):
    """Answers requests."""

    def is_body_wanted(self, request: HttpRequest) -> bool:
        """Return whether the body of a request is to be read, given its head; if not, it is answered without."""

    async def handle(self, request: HttpRequest, response: HttpResponse) -> None:
        """Answer a request. Errors end the connection; cancelled when the client goes."""


ErrorBody: TypeAlias = Callable[[HttpError], bytes]
"""Makes the body of an answer to a request that is no proper HTTP."""

MAX_PIPELINED_REQUESTS = 4
"""Requests that a client may send ahead of the answers."""

MAX_HEADER_BYTES = 32 << 10
"""Largest request head; more is refused with 431."""
WRITE_BUFFER_BYTES = 256 << 10
"""Bytes of an answer held for a client that reads slowly; above, its output waits unwritten, as plain text."""
_LINGER_SECONDS = 1.0
"""Time to swallow what the client still sends after a refusal: closing at once would take the answer away from it."""


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds of a connection; see `GatewaySettings`."""

    max_body_bytes: int
    header_timeout_seconds: float
    body_timeout_seconds: float
    keep_alive_timeout_seconds: float
    slow_client_timeout_seconds: float
    stream_idle_seconds: float
    max_connections: int = sys.maxsize
    max_address_connections: int = sys.maxsize


class HttpConnection(asyncio.Protocol):
    """A connection. Requests sent ahead wait in order; one task answers them and ends when there are none.

    The socket is read all the time, so that a client that goes is noticed at once; what it may send ahead is bounded.
    """

    def __init__(
        self,
        handler: Handler,
        error_body: ErrorBody,
        limits: HttpLimits,
        connections: Connections,
        tasks: asyncio.TaskGroup,
        host: str,
    ) -> None:
        self.host = host
        """Address of the client."""
        self.is_made = False
        """Whether it has been opened: its handshake is over."""
        self._handler, self._error_body = handler, error_body
        self._limits, self._connections = limits, connections
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._held = connections.held
        self._reader = RequestReader(
            max_header_bytes=MAX_HEADER_BYTES,
            max_body_bytes=limits.max_body_bytes,
            held=connections.held,
            is_body_wanted=handler.is_body_wanted,
        )
        self._waiting: deque[HttpRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed_phase = ""
        self.is_writable = True
        """Whether little enough is buffered."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._on_writable: list[Callable[[], None]] = []
        self._slow_timer: asyncio.TimerHandle | None = None
        self._refusal: HttpError | None = None
        self._http2: Http2Refusal | None = None
        self._is_closing = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.is_made = True
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._connections.add(self)
        self._watch_phase()

    def data_received(self, data: bytes) -> None:
        """Take bytes; start answering if they complete a request."""
        if self._refusal is not None:
            return
        if self._http2 is None and self._reader.phase == "idle" and data.startswith(HTTP2_START):
            self._http2 = Http2Refusal()
            self.write(self._http2.greeting)
        if self._http2 is not None:
            if answer := self._http2.feed(data):
                self.write(answer)
                self._close_gently()
            return
        try:
            self._take(self._reader.feed(data))
        except HttpError as error:
            self._refuse(error)
            return
        if self._reader.take_continue():
            self.write(CONTINUE)
        if self._waiting and self._task is None:
            self._task = self._tasks.create_task(self._answer_all())
        self._watch_phase()

    def pause_writing(self) -> None:
        """Note that the client does not take its answer."""
        self.is_writable = False
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the client has taken enough; go on with what waits for it."""
        self._note_writable()
        self._stop_slow_timer()
        functions, self._on_writable = self._on_writable, []
        for function in functions:
            try:
                function()
            except Exception:  # the edge of a request: nobody else is told by this call
                log.exception("request_failed")
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """End: whatever works for this client is cancelled."""
        self._connections.discard(self)
        self._connections.leave(self.host)
        self._stop_timer()
        self._stop_slow_timer()
        self._on_writable.clear()
        self._note_writable()
        self._reader.close()
        while self._waiting:
            self._held.give_back(self._waiting.popleft().num_held_bytes)
        if self._task is not None:
            self._task.cancel()

    # Called by responses and by the server.

    def write(self, data: bytes) -> bool:
        """Send bytes; return `is_writable`."""
        self._transport.write(data)
        return self.is_writable

    async def wait_writable(self) -> None:
        """Wait until the client has taken enough; raise ClientGoneError if that takes too long, and it is cut off."""
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(self._limits.slow_client_timeout_seconds):
                await self._writable.wait()
        except TimeoutError:
            self._transport.abort()
            raise ClientGoneError("the client takes nothing of its answer") from None

    def when_writable(self, function: Callable[[], None]) -> None:
        """Call a function once the client has taken enough; if it takes nothing for too long, its connection is cut."""
        self._on_writable.append(function)
        if self._slow_timer is None:
            seconds = self._limits.slow_client_timeout_seconds
            self._slow_timer = self._loop.call_later(seconds, self._drop_slow_client)

    def close_when_idle(self) -> None:
        """Close after the answer that is being given, if there is one."""
        self._is_closing = True
        if self._task is None:
            self._close()

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def _is_last(self) -> bool:
        """Return whether the answer that is about to be given is the last on this connection."""
        return (self._is_closing or self._connections.is_leaving) and not self._waiting

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                await self.wait_writable()
                request = self._waiting.popleft()
                idle_seconds = self._limits.stream_idle_seconds
                accepted = request.headers.get("accept-encoding", "")
                kind = GzipResponse if "gzip" in accepted.lower() and accepts_gzip(accepted) else HttpResponse
                response = kind(self, request, is_last=self._is_last, stream_idle_seconds=idle_seconds)
                try:
                    await self._handler.handle(request, response)
                finally:
                    self._held.give_back(request.num_held_bytes)
                if not response.is_keep_alive:
                    self._close_gently()
                    return
        except asyncio.CancelledError:
            self._transport.abort()  # whoever cancelled: nobody will answer any more
            raise
        except ClientGoneError as error:
            log.info("client_dropped cause=%r", str(error))
        except Exception:
            log.exception("request_failed")
            self._transport.abort()
        finally:
            self._task = None
        if self._refusal is not None:
            self._send_refusal(self._refusal)
        elif self._is_closing:
            self._close()
        else:
            self._watch_phase()

    def _take(self, requests: Sequence[HttpRequest]) -> None:
        num_free = MAX_PIPELINED_REQUESTS - len(self._waiting)
        self._waiting += requests[:num_free]
        if len(requests) > num_free:
            raise HttpError(400, f"more than {MAX_PIPELINED_REQUESTS} requests sent ahead")

    def _refuse(self, error: HttpError) -> None:
        """Stop reading requests; answer those before the bad one first."""
        self._refusal = error
        self._stop_timer()
        if self._task is None and not self._waiting:
            self._send_refusal(error)
        elif self._task is None:
            self._task = self._tasks.create_task(self._answer_all())

    def _send_refusal(self, error: HttpError) -> None:
        response = HttpResponse(self, HttpRequest(is_keep_alive=False), is_last=lambda: True)
        response.send(error.status, self._error_body(error))
        self._close_gently()

    def _close_gently(self) -> None:
        self._refusal = self._refusal or HttpError(400, "the connection is being closed")
        self._stop_timer()
        if self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self._close)

    def _close(self) -> None:
        """Close once the client has taken what is buffered, or will not."""
        self._stop_timer()
        self._transport.close()
        self._timer = self._loop.call_later(self._limits.slow_client_timeout_seconds, self._transport.abort)

    def _watch_phase(self) -> None:
        """Keep one timer for what is awaited of the client; none while it waits for an answer."""
        phase = self._reader.phase
        if phase == "idle" and self._task is not None:
            self._stop_timer()
            return
        if phase == self._timed_phase and self._timer is not None:
            return
        self._stop_timer()
        self._timed_phase = phase
        seconds = {
            "idle": self._limits.keep_alive_timeout_seconds,
            "head": self._limits.header_timeout_seconds,
            "body": self._limits.body_timeout_seconds,
        }[phase]
        self._timer = self._loop.call_later(seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._timer = None
        if self._timed_phase == "idle":
            self._close()
        else:
            self._refuse(HttpError(408, f"the request's {self._timed_phase} took too long"))

    def _note_writable(self) -> None:
        self.is_writable = True
        self._writable.set()

    def _drop_slow_client(self) -> None:
        self._slow_timer = None
        log.info("client_dropped cause='the client takes nothing of its answer'")
        self._transport.abort()

    def _stop_slow_timer(self) -> None:
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Connections:
    """The connections of a server: each is counted from its acceptance on, and when it is open, adds itself."""

    def __init__(self, held: HeldBytes, limits: HttpLimits) -> None:
        self.held = held
        """Bytes of requests, over all of them."""
        self._limits = limits
        self._num_connections = 0
        self._num_of_host: Counter[str] = Counter()
        self.is_leaving = False
        """Whether every answer ends its connection: the server stops soon."""
        self._open: set[HttpConnection] = set()
        self._is_empty = asyncio.Event()

    def enter(self, host: str) -> bool:
        """Count a connection from an address, unless there are too many; return whether it was counted."""
        limits = self._limits
        is_full = self._num_connections >= limits.max_connections
        if is_full or self._num_of_host[host] >= limits.max_address_connections:
            return False
        self._num_connections += 1
        self._num_of_host[host] += 1
        return True

    def leave(self, host: str) -> None:
        """Count a connection from an address no more."""
        self._num_connections -= 1
        self._num_of_host[host] -= 1
        if not self._num_of_host[host]:
            del self._num_of_host[host]

    def add(self, connection: HttpConnection) -> None:
        """Note a connection."""
        self._open.add(connection)

    def discard(self, connection: HttpConnection) -> None:
        """Forget a connection that has ended."""
        self._open.discard(connection)
        if not self._open:
            self._is_empty.set()

    def all(self) -> list[HttpConnection]:
        """Return the connections that are open."""
        return list(self._open)

    async def wait_empty(self) -> None:
        """Return once there are none."""
        while self._open:
            self._is_empty.clear()
            await self._is_empty.wait()
