"""HTTP/1.1 messages: a request as the handlers see it, and the bytes of response heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

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


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return the bytes of a response's head."""
    lines = [
        f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def chunk(data: bytes) -> bytes:
    """Return data as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
