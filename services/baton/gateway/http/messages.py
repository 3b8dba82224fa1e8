"""HTTP/1.1 messages: requests as they are read from bytes, within limits, and the heads of responses.

The bytes of requests that a process holds are bounded over all connections: clients decide how many arrive, not memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from baton.errors import ConfigurationError, OverloadedError
from baton.installation import install_line

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"


class HttpError(Exception):
    """A request that breaks the rules of HTTP or the server's limits; the connection ends after the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class HttpRequest:
    """One complete request."""

    method: str = ""
    """In upper case."""
    path: str = ""
    """Without the query."""
    query: str = ""
    """What follows the question mark, as it came."""
    headers: dict[str, str] = field(default_factory=dict)
    """By lower-case name; the last of equal names wins."""
    body: bytes = b""
    """Complete body."""
    is_keep_alive: bool = True
    """Whether the connection may serve another request."""
    has_chunks: bool = True
    """Whether the client understands chunked answers (HTTP/1.1)."""
    num_held_bytes: int = 0
    """Bytes that are held for it, until its answer has ended."""


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a response's head."""
    return _lines(_status_and_date(status, int(time.time())), headers)


@lru_cache(maxsize=8)
def _status_and_date(status: int, second: int) -> str:
    return f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\ndate: {formatdate(second, usegmt=True)}"


def _lines(first: str, headers: Mapping[str, str]) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Return data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_PHRASES = {status.value: status.phrase for status in HTTPStatus}


try:
    import httptools
except ImportError as import_error:
    raise ConfigurationError(f"the gateway needs httptools: {install_line('gateway')}") from import_error

_ONCE = frozenset({"host", "authorization", "x-api-key", "transfer-encoding"})
"""Headers of which a request has one: a proxy before the gateway may have gone by another than the gateway would."""
_UPGRADE = frozenset({"upgrade", "http2-settings"})
"""Headers of an offer to go on by another protocol, and their names in `Connection`."""


class RequestReader:
    """Turns the bytes of one connection into requests.

    `phase` says what is awaited: "idle" (no byte of a request has come), "head" or "body".

    Args:
        max_header_bytes: Of a request's head.
        max_body_bytes: Of a request's body.
        held: Counts bodies, of complete requests too: whoever takes one gives its `num_held_bytes` back.
    """

    def __init__(self, *, max_header_bytes: int, max_body_bytes: int, held: HeldBytes) -> None:
        self._held = held
        self._max_header_bytes = max_header_bytes
        self._max_body_bytes = max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._complete: list[HttpRequest] = []
        self._is_continue_wanted = False
        self._begin()
        self.phase = "idle"

    def feed(self, data: bytes) -> list[HttpRequest]:
        """Take bytes; return the requests that they complete.

        Raises:
            HttpError: If they are no HTTP, or exceed a limit.
        """
        self._complete = []
        was_in_head = self.phase != "body"
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._feed_without_upgrade(data, upgrade)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, HttpError):
                raise error.__context__ from None
            raise HttpError(400, "malformed request") from error
        except httptools.HttpParserError as error:
            raise HttpError(400, f"malformed request: {error}") from error
        if self.phase == "head" and was_in_head:
            self._count_header_bytes(len(data))
        return self._complete

    def take_continue(self) -> bool:
        """Return, once, whether the client waits for "100 Continue" before it sends the body."""
        is_wanted, self._is_continue_wanted = self._is_continue_wanted and self.phase == "body", False
        return is_wanted

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._begin()
        self.phase = "head"

    def on_url(self, url: bytes) -> None:
        """Take a part of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        key = name.decode("latin-1").lower()
        if key in _ONCE and key in self._request.headers:
            raise HttpError(400, f"malformed request: Duplicate {key.title()}")
        self._request.headers[key] = value.decode("latin-1")
        self._num_named_header_bytes += len(name) + len(value) + 4
        if self._num_named_header_bytes > self._max_header_bytes:
            raise HttpError(431, f"the request's head is larger than {self._max_header_bytes} bytes")

    def on_headers_complete(self) -> None:
        """Finish the head; refuse a body that is known to be too large."""
        if len(self._url) + self._num_named_header_bytes > self._max_header_bytes:
            raise HttpError(431, f"the request's head is larger than {self._max_header_bytes} bytes")
        headers = self._request.headers
        if "host" not in headers and self._parser.get_http_version() == "1.1":
            raise HttpError(400, "malformed request: Missing Host")
        num_body_bytes = int(headers.get("content-length", "0"))
        self._check_body_bytes(num_body_bytes)
        self._hold(num_body_bytes)
        self._is_continue_wanted = headers.get("expect", "").lower() == "100-continue"
        self.phase = "body"

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._body.append(body)
        self._num_body_bytes += len(body)
        self._check_body_bytes(self._num_body_bytes)
        self._hold(self._num_body_bytes)

    def on_message_complete(self) -> None:
        """Finish a request."""
        request = self._request
        request.method = self._parser.get_method().decode("latin-1")
        path, _, query = self._url.partition(b"?")
        request.path, request.query = _without_origin(path).decode("latin-1"), query.decode("latin-1")
        request.body = b"".join(self._body)
        request.is_keep_alive = self._parser.should_keep_alive()
        request.has_chunks = self._parser.get_http_version() != "1.0"
        self._complete.append(request)
        self._begin()
        self.phase = "idle"

    def _feed_without_upgrade(self, data: bytes, upgrade: httptools.HttpParserUpgrade) -> None:
        """Read requests as if they offered no other protocol, as servers may (RFC 9110, 7.8).

        The parser takes such a request for complete at the end of its head: another one gets the head without the offer
        before what follows it.
        """
        while True:
            request = self._complete.pop()
            self._held.give_back(request.num_held_bytes)
            if request.method == "CONNECT":
                raise HttpError(400, "CONNECT asks a proxy for a tunnel, and this is none")
            self._parser = httptools.HttpRequestParser(self)
            self._parser.feed_data(_head_without_upgrade(request))
            data = data[upgrade.args[0] :]
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as another:
                upgrade = another
            else:
                return

    def _begin(self) -> None:
        self._request = HttpRequest()
        self._url = b""
        self._body: list[bytes] = []
        self._num_body_bytes = 0
        self._num_unnamed_header_bytes = 0
        self._num_named_header_bytes = 0

    def close(self) -> None:
        """Give back what is held for a request that will not be complete any more."""
        self._held.give_back(self._request.num_held_bytes)
        self._request.num_held_bytes = 0

    def _hold(self, num_bytes: int) -> None:
        """Hold so many bytes for the request, or refuse it: a body that is announced has its room before it comes."""
        more = num_bytes - self._request.num_held_bytes
        if more <= 0:
            return
        try:
            self._held.take(more)
        except OverloadedError as error:
            raise HttpError(429, error.message) from error
        self._request.num_held_bytes += more

    def _count_header_bytes(self, num_bytes: int) -> None:
        """Bound a head whose end has not come: the parser itself would gather a line for ever."""
        self._num_unnamed_header_bytes += num_bytes
        if self._num_unnamed_header_bytes > self._max_header_bytes:
            raise HttpError(431, f"the request's head is larger than {self._max_header_bytes} bytes")

    def _check_body_bytes(self, num_bytes: int) -> None:
        if num_bytes > self._max_body_bytes:
            raise HttpError(413, f"the request's body is larger than {self._max_body_bytes} bytes")


def _head_without_upgrade(request: HttpRequest) -> bytes:
    """Return the head of a request, without the offer of another protocol."""
    headers = {name: value for name, value in request.headers.items() if name not in _UPGRADE}
    options = [option.strip() for option in headers.pop("connection", "").split(",")]
    if kept := ", ".join(option for option in options if option.lower() not in _UPGRADE):
        headers["connection"] = kept
    target, version = f"{request.path}?{request.query}".rstrip("?"), "1.1" if request.has_chunks else "1.0"
    return _lines(f"{request.method} {target} HTTP/{version}", headers)


def _without_origin(path: bytes) -> bytes:
    """Return the path of a target; one with scheme and host is what clients of a proxy send (RFC 9112, 3.2.2)."""
    scheme, separator, rest = path.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        return path
    return b"/" + rest.partition(b"/")[2]


class HeldBytes:
    """Counts bytes of bodies from their arrival until the answer's end. Used on the event loop only.

    Invariant: there are never more than `max_bytes`, but for one body that is alone.

    Args:
        max_bytes: Bound, above 0.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        """Bytes that are held."""

    def take(self, num_bytes: int) -> None:
        """Take bytes.

        Raises:
            OverloadedError: If there is no room beside those that are held.
        """
        if self.num_bytes and self.num_bytes + num_bytes > self.max_bytes:
            raise OverloadedError(
                f"{self.num_bytes} bytes of requests are in work, and memory has room for {self.max_bytes};"
                " try again soon"
            )
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Give bytes back."""
        self.num_bytes -= num_bytes

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Hold bytes for as long as the context lasts.

        Raises:
            OverloadedError: If there is no room for them.
        """
        self.take(num_bytes)
        try:
            yield
        finally:
            self.give_back(num_bytes)
