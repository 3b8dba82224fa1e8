"""One answer on one connection: whole, or as a stream of server-sent events that nobody on the way gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from baton.gateway.http.messages import EVENT_STREAM, JSON, LAST_CHUNK, HttpRequest, chunk, head


class ClientGoneError(Exception):
    """The client has closed its connection, or takes nothing of its answer."""


class ResponseTransport(Protocol):
    """Where an answer is written; the connection."""

    def write(self, data: bytes) -> bool:
        """Send bytes, which are buffered if the client does not take them; return whether little enough is."""

    async def wait_writable(self) -> None:
        """Return once the client has taken enough of what waits; raise ClientGoneError if that takes too long."""

    def when_writable(self, function: Callable[[], None]) -> None:
        """Call a function once the client has taken enough; a client that takes nothing for too long is cut off."""

    @property
    def is_writable(self) -> bool:
        """Return whether little enough is buffered."""


class HttpResponse:
    """Writes one answer, by one `send`, or by `start_stream` and any number of `write`s and then `end`."""

    def __init__(
        self,
        outlet: ResponseTransport,
        request: HttpRequest,
        *,
        is_last: Callable[[], bool],
        stream_idle_seconds: float = 0.0,
    ) -> None:
        """Make it.

        `outlet`: where it goes. `request`: what it answers. `is_last`: tells, when the status is about to be sent,
        whether the connection serves no other request. `stream_idle_seconds`: time without an event after which a
        stream gets a comment; 0: never.
        """
        self._outlet, self._is_last = outlet, is_last
        self._has_chunks = request.has_chunks
        self._is_head_only = request.method == "HEAD"
        self._head = b""
        self.headers: dict[str, str] = {}
        """Headers that every answer to this request gets."""
        self.is_keep_alive = request.is_keep_alive
        """Whether the connection serves another request afterwards."""
        self.is_stream = False
        """Whether a stream has been started."""
        self.is_begun = False
        """Whether the status has been sent and cannot be changed any more."""
        self.stream_idle_seconds = stream_idle_seconds
        """Time without an event after which a stream gets a comment; 0: never."""
        self.num_writes = 0
        """Parts of the stream that were written."""
        self.status = 0
        """Status that was sent; 0 before."""

    def send(self, status: int, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole JSON answer; to HEAD, only what would come before its body."""
        assert not self.is_begun
        self.status = status
        fields = {"content-type": JSON, "content-length": str(len(body)), **self.headers, **(headers or {})}
        self.is_begun = True
        self._outlet.write(head(status, fields | self._connection_header()) + (b"" if self._is_head_only else body))

    def start_stream(self, headers: Mapping[str, str] | None = None) -> None:
        """Choose server-sent events. The head goes with the first `write`: an error before it has its own status."""
        fields = {"content-type": EVENT_STREAM, "cache-control": "no-cache", "x-accel-buffering": "no", **self.headers}
        fields |= headers or {}
        if self._has_chunks:
            fields["transfer-encoding"] = "chunked"
        else:
            self.is_keep_alive = False
        self._head = head(200, fields | self._connection_header())
        self.is_stream = True

    def write(self, data: bytes) -> bool:
        """Send a part of the stream, by one write to the socket; return `is_writable`."""
        if not data:
            return self._outlet.is_writable
        body = b"%x\r\n%b\r\n" % (len(data), data) if self._has_chunks else data  # `chunk`, without a call per token
        if not self.is_begun:
            self.is_begun, self.status = True, 200
            body = self._head + body
        self.num_writes += 1
        return self._outlet.write(body)

    @property
    def is_writable(self) -> bool:
        """Return whether the client keeps up; if not, the next write waits for `when_writable` or `wait_writable`."""
        return self._outlet.is_writable

    def when_writable(self, function: Callable[[], None]) -> None:
        """Call a function once the client has caught up; one that does not is cut off, and its task cancelled."""
        self._outlet.when_writable(function)

    async def wait_writable(self) -> None:
        """Wait until the client has caught up; raise ClientGoneError if it takes nothing for too long."""
        await self._outlet.wait_writable()

    def end(self, data: bytes = b"", *, is_keep_alive: bool = True) -> None:
        """End the stream after a last part."""
        self.is_keep_alive = self.is_keep_alive and is_keep_alive
        last = LAST_CHUNK if self._has_chunks else b""
        body = (chunk(data) if self._has_chunks else data) if data else b""
        start = b"" if self.is_begun else self._head
        self.is_begun, self.status = True, 200
        self._outlet.write(start + body + last)

    def _connection_header(self) -> dict[str, str]:
        self.is_keep_alive = self.is_keep_alive and not self._is_last()
        return {} if self.is_keep_alive else {"connection": "close"}


COMMENT = b": keep-alive\n\n"
"""Ignored by every reader of server-sent events."""


class KeepAlive:
    """Writes a comment after each idle time of a stream, before its first event too, inside `with`.

    One timer per stream, which looks twice per idle time whether something was written: a write costs nothing.
    """

    def __init__(self, response: HttpResponse, idle_seconds: float) -> None:
        """Make it.

        Args:
            response: A stream that was started.
            idle_seconds: Time without a byte after which a comment comes, within half of it; 0: no comments.
        """
        self._response, self._idle_seconds = response, idle_seconds
        self._num_idle_looks = 0
        self._num_writes = response.num_writes
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> KeepAlive:
        if self._idle_seconds:
            self._schedule()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._idle_seconds / 2, self._look)

    def _look(self) -> None:
        is_idle = self._response.num_writes == self._num_writes
        self._num_idle_looks = self._num_idle_looks + 1 if is_idle else 0
        if self._num_idle_looks >= 2 and self._response.is_writable:
            self._response.write(COMMENT)
            self._num_idle_looks = 0
        self._num_writes = self._response.num_writes
        self._schedule()
