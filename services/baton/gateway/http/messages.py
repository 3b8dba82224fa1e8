"""HTTP/1.1 messages: requests as they are read from bytes, within limits, and the heads of responses.

The bytes of requests that a process holds are bounded over all connections: clients decide how many arrive, not memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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
        self.status, self.message = status, message


class HeadVerdict:
    """What whoever judges heads of requests keeps for their answers: a class of its own."""

    __slots__ = ()


@dataclass(slots=True)
class HttpRequest:
    """One complete request."""

    method: str = ""
    """In upper case."""
    path: str = ""
    query: str = ""
    """What follows the question mark, as it came."""
    headers: dict[str, str] = field(default_factory=dict)
    """By lower-case name; the last of equal names wins."""
    body: bytes = b""
    """Complete body; empty if the request is to be refused for its head."""
    is_keep_alive: bool = True
    """Whether the connection may serve another request."""
    has_chunks: bool = True
    """Whether the client understands chunked answers (HTTP/1.1)."""
    num_held_bytes: int = 0
    """Bytes that are held for it, until its answer has ended."""
    verdict: HeadVerdict | None = None
    """Why its head was taken; None: it was not judged, or is refused."""


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


class _UnwantedBodyError(Exception):
    """A request will be refused for its head: its body is not read."""


class RequestReader:
    """Turns the bytes of one connection into requests.

    `phase` says what is awaited: "idle" (no byte of a request has come), "head" or "body". `max_header_bytes`: of a
    request's head; also of what stands between the parts of a body, or behind it. `max_body_bytes`: of a request's
    body. `held`: counts bodies, of complete requests too: whoever takes one gives its `num_held_bytes` back.
    `is_body_wanted`: judges a request by its head. Where it says no, the request is complete without its body, and
    nothing behind it is read.
    """

    def __init__(
        self,
        *,
        max_header_bytes: int,
        max_body_bytes: int,
        held: HeldBytes,
        is_body_wanted: Callable[[HttpRequest], bool] = lambda _request: True,
    ) -> None:
        self._held, self._is_body_wanted = held, is_body_wanted
        self._is_over = False
        self._max_header_bytes, self._max_body_bytes = max_header_bytes, max_body_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._complete: list[HttpRequest] = []
        self._is_continue_wanted = False
        self._begin()
        self.phase = "idle"

    def feed(self, data: bytes) -> list[HttpRequest]:
        """Take bytes; return the requests that they complete. Raises HttpError if they are no HTTP, or too many."""
        self._complete = []
        if self._is_over:
            return self._complete
        was_in_head, num_body_bytes = self.phase != "body", self._num_body_bytes
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._feed_without_upgrade(data, upgrade)
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, HttpError):
                raise error.__context__ from None
            if not isinstance(error.__context__, _UnwantedBodyError):
                raise HttpError(400, "malformed request") from error
            self._is_over = True
        except httptools.HttpParserError as error:
            raise HttpError(400, f"malformed request: {error}") from error
        if self.phase == "head" and was_in_head:
            self._count_header_bytes(len(data))
        elif self.phase == "body" and not was_in_head and not self._complete:
            self._count_framing_bytes(len(data), self._num_body_bytes - num_body_bytes)
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
        """Take a header; fields behind a body are dropped: they came after the request was judged."""
        if self.phase == "body":
            return
        key = name.decode("latin-1").lower()
        if key in _ONCE and key in self._request.headers:
            raise HttpError(400, f"malformed request: Duplicate {key.title()}")
        self._request.headers[key] = value.decode("latin-1")
        self._num_named_header_bytes += len(name) + len(value) + 4
        if self._num_named_header_bytes > self._max_header_bytes:
            raise HttpError(431, f"the request's head is larger than {self._max_header_bytes} bytes")

    def on_headers_complete(self) -> None:
        """Finish the head; refuse a body that is known to be too large, or not wanted."""
        if len(self._url) + self._num_named_header_bytes > self._max_header_bytes:
            raise HttpError(431, f"the request's head is larger than {self._max_header_bytes} bytes")
        request, version = self._request, self._parser.get_http_version()
        headers = request.headers
        if "host" not in headers and version == "1.1":
            raise HttpError(400, "malformed request: Missing Host")
        request.method, request.has_chunks = self._parser.get_method().decode("latin-1"), version != "1.0"
        path, _, query = self._url.partition(b"?")
        request.path, request.query = _without_origin(path).decode("latin-1"), query.decode("latin-1")
        num_body_bytes = int(headers.get("content-length", "0"))
        if (num_body_bytes or "transfer-encoding" in headers) and not self._is_body_wanted(request):
            request.is_keep_alive = False
            self._complete.append(request)
            self._begin()
            self.phase = "idle"
            raise _UnwantedBodyError
        self._check_body_bytes(num_body_bytes)
        self._check_room(num_body_bytes)
        self._is_continue_wanted = headers.get("expect", "").lower() == "100-continue"
        self.phase = "body"

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._num_body_bytes += len(body)
        self._check_body_bytes(self._num_body_bytes)
        self._check_room(len(body))
        self._held.take(len(body))
        self._request.num_held_bytes += len(body)
        self._body += body

    def on_message_complete(self) -> None:
        """Finish a request."""
        request = self._request
        request.body = bytes(self._body)
        request.is_keep_alive = self._parser.should_keep_alive()
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
        self._body = bytearray()
        self._num_body_bytes = 0
        self._framing_room_bytes = self._max_header_bytes
        self._num_unnamed_header_bytes = 0
        self._num_named_header_bytes = 0

    def close(self) -> None:
        """Give back what is held for a request that will not be complete any more."""
        self._held.give_back(self._request.num_held_bytes)
        self._request.num_held_bytes = 0

    def _check_room(self, num_bytes: int) -> None:
        """Refuse what memory has no room for; what is announced is not reserved, for it may never come."""
        try:
            self._held.check(num_bytes)
        except OverloadedError as error:
            raise HttpError(429, error.message) from error

    def _count_framing_bytes(self, num_bytes: int, num_body_bytes: int) -> None:
        """Bound what is no body between chunks and behind them; the parser would gather a line of it for ever.

        Framing may be as long as the body, and longer by a head at any time.
        """
        room = self._framing_room_bytes - num_bytes + 2 * num_body_bytes
        self._framing_room_bytes = min(room, self._max_header_bytes)
        if room < 0:
            raise HttpError(431, f"more than {self._max_header_bytes} bytes between parts of the body, or behind it")

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

    def check(self, num_bytes: int) -> None:
        """Return if so many bytes could be taken; raise OverloadedError if there is no room beside those held."""
        if self.num_bytes and self.num_bytes + num_bytes > self.max_bytes:
            raise OverloadedError(
                f"{self.num_bytes} bytes of requests are in work, and memory has room for {self.max_bytes};"
                " try again soon"
            )

    def take(self, num_bytes: int) -> None:
        """Take bytes; raise OverloadedError as `check`."""
        self.check(num_bytes)
        self.num_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Give bytes back."""
        self.num_bytes -= num_bytes

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Hold bytes for as long as the context lasts; raise OverloadedError if there is no room for them."""
        self.take(num_bytes)
        try:
            yield
        finally:
            self.give_back(num_bytes)
