"""A small HTTP/1.1 client: connections that stay open, and bodies as they arrive. Cheap, so as not to be measured."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

_READ_BYTES = 65536


class HttpError(Exception):
    """A server said something that is no answer: a bad status, or a body that ends too early."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status, where there was one."""


class HttpClient:
    """Connections to one server. A connection that has read its whole answer is used again."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Take the address; nothing is opened. Raises ValueError if the address is not of http or https."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http or https address")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        lines = [f"Host: {parts.netloc}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        self._head_end = ("\r\n".join(lines) + "\r\n").encode()
        self._idle: list[Connection] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Yield an open connection; it goes back to the idle ones unless an answer was left unread."""
        connection = self._take_idle() or await self._open()
        try:
            yield connection
        finally:
            if connection.is_reusable:
                self._idle.append(connection)
            else:
                connection.close()

    async def get_json_text(self, path: str) -> str:
        """Return the body of a GET; raise HttpError if the status is not 200, OSError if the server is not reached."""
        async with self.connection() as connection:
            response = await connection.request("GET", path)
            return (await response.read_ok()).decode()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable:
                return connection
            connection.close()
        return None

    async def _open(self) -> Connection:
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        return Connection(reader, writer, self._prefix, self._head_end)


@dataclass(slots=True)
class Connection:
    """One connection: a request is answered in full before the next is sent."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    path_prefix: str
    head_end: bytes
    response: Response | None = None

    @property
    def is_reusable(self) -> bool:
        """Whether another request may be sent: the last answer was read whole and nobody hung up."""
        is_unread = self.response is not None and not self.response.is_complete
        return not is_unread and not self.reader.at_eof() and not self.writer.is_closing()

    async def request(self, method: str, path: str, body: bytes = b"") -> Response:
        """Send a request and return its answer as soon as the head is there."""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        head = f"{method} {self.path_prefix}{path} HTTP/1.1\r\n{length}".encode()
        self.response = Response(self.reader)
        self.writer.write(head + self.head_end + b"\r\n" + body)
        await self.writer.drain()
        await self.response.read_head()
        return self.response

    def close(self) -> None:
        """Hang up."""
        self.writer.close()


@dataclass(slots=True)
class Response:
    """An answer under way. httptools calls the `on_` methods while it parses."""

    reader: asyncio.StreamReader
    status: int = 0
    is_complete: bool = False
    _has_head: bool = False
    _has_length: bool = False
    _pieces: list[bytes] = field(default_factory=list)
    _parser: httptools.HttpResponseParser = field(init=False)

    def __post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, _value: bytes) -> None:
        """Note whether the end of the body will be known without the end of the connection."""
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        """Note the status."""
        self.status = self._parser.get_status_code()
        self._has_head = True

    def on_body(self, piece: bytes) -> None:
        """Keep a piece of the body."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """Note the end of the body."""
        self.is_complete = True

    async def read_head(self) -> None:
        """Read until the status is known; raise HttpError if the server hangs up before."""
        while not self._has_head:
            await self._read_more()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes, read by read; raise HttpError if the server hangs up before the end."""
        while True:
            if self._pieces:
                piece = b"".join(self._pieces)
                self._pieces.clear()
                yield piece
            if self.is_complete:
                return
            if not self._pieces:
                await self._read_more()

    async def read_ok(self) -> bytes:
        """Return the whole body; raise HttpError with the beginning of the body if the status is not 200."""
        body = b"".join([piece async for piece in self.pieces()])
        if self.status != 200:
            raise HttpError(f"HTTP {self.status}: {body[:300].decode(errors='replace')}", self.status)
        return body

    async def _read_more(self) -> None:
        received = await self.reader.read(_READ_BYTES)
        if received:
            try:
                self._parser.feed_data(received)
            except httptools.HttpParserError as error:
                raise HttpError(f"the server does not speak HTTP: {error}") from error
        elif self._has_head and not self._has_length:
            self.is_complete = True
        else:
            raise HttpError("the server hung up in the middle of an answer", self.status or None)


def headers_from(api_key_env: str | None) -> dict[str, str]:
    """Return the headers of all requests: the API key of a variable; raise ValueError if that is empty."""
    if api_key_env is None:
        return {}
    if not os.environ.get(api_key_env):
        raise ValueError(f"the environment variable {api_key_env} is empty")
    return {"Authorization": f"Bearer {os.environ[api_key_env]}"}
