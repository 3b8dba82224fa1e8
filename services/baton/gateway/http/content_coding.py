"""Bodies in fewer bytes: requests that come compressed are inflated within a bound, answers compressed for who asks."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from types import MappingProxyType

from baton.gateway.http.messages import HeldBytes, HttpError, HttpRequest
from baton.gateway.http.response import HttpResponse

_WINDOW_BITS: Mapping[str, int] = MappingProxyType({"gzip": 31, "x-gzip": 31, "deflate": 15})
"""What zlib calls the codings of RFC 9110, 8.4.1, of one member."""
ACCEPTED_CODINGS = "gzip, deflate"
"""Of requests, for `Accept-Encoding`."""

_LEAST_BYTES, _MOST_BYTES = 1400, 128 << 10
"""Whole answers that are compressed: less fits into a packet, more would keep the event loop for over a millisecond."""
_LEVEL, _ANSWER_WINDOW_BITS, _MEMORY_LEVEL = 1, 16 + 12, 5
"""Fastest; 32 KiB per stream, where zlib's defaults take 256."""


class BodyInflater:
    """Inflates bodies beside the event loop; one at a time, as none is counted before its size is known."""

    def __init__(self, held: HeldBytes, max_body_bytes: int) -> None:
        self._held, self._max_body_bytes = held, max_body_bytes
        self._turn = asyncio.Lock()

    async def inflate(self, request: HttpRequest, coding: str) -> None:
        """Decode a body in place; raise HttpError 400, 413, 415 if it is bad, OverloadedError if there is no room."""
        async with self._turn:
            body = await asyncio.to_thread(_inflated, request.body, coding, self._max_body_bytes)
            more = max(0, len(body) - request.num_held_bytes)
            self._held.take(more)
            request.body, request.num_held_bytes = body, request.num_held_bytes + more


def _inflated(data: bytes, coding: str, max_bytes: int) -> bytes:
    """Return a body; never holds more than one byte above the bound."""
    if coding not in _WINDOW_BITS:
        raise HttpError(415, f"The body's content encoding must be one of {ACCEPTED_CODINGS}, got {coding}")
    decompressor = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        body = decompressor.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise HttpError(400, f"The body is not valid {coding}: {error}") from error
    if len(body) > max_bytes:
        raise HttpError(413, f"the request's body is larger than {max_bytes} bytes once it is inflated")
    if not decompressor.eof or decompressor.unused_data:
        problem = "there is more behind its end" if decompressor.eof else "it ends early"
        raise HttpError(400, f"The body is not valid {coding}: {problem}")
    return body


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether a client asks for gzip: by its name, and not with a weight of 0."""
    for each in accept_encoding.lower().split(","):
        coding, _, weight = each.replace(" ", "").partition(";q=")
        if coding in ("gzip", "x-gzip"):
            return weight.rstrip("0") not in ("0.", "") if weight else True
    return False


class GzipResponse(HttpResponse):
    """Writes one answer in gzip; of a stream, each part can be read when it arrives."""

    def send(self, status: int, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer, compressed if that is worth it."""
        if _LEAST_BYTES <= len(body) <= _MOST_BYTES:
            compressor = _compressor()
            body, headers = compressor.compress(body) + compressor.flush(), self._coded(headers)
        super().send(status, body, headers=headers)

    def start_stream(self, headers: Mapping[str, str] | None = None) -> None:
        """Choose a stream of server-sent events."""
        self._stream = _compressor()
        super().start_stream(self._coded(headers))

    def write(self, data: bytes) -> bool:
        """Send a part of the stream; return `is_writable`."""
        return super().write(data and self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH))

    def end(self, data: bytes = b"", *, is_keep_alive: bool = True) -> None:
        """End the stream after a last part."""
        super().end(self._stream.compress(data) + self._stream.flush(), is_keep_alive=is_keep_alive)

    def _coded(self, headers: Mapping[str, str] | None) -> Mapping[str, str]:
        vary = ", ".join(filter(None, (self.headers.get("vary"), "accept-encoding")))
        return {**(headers or {}), "content-encoding": "gzip", "vary": vary}


def _compressor() -> zlib._Compress:
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, _ANSWER_WINDOW_BITS, _MEMORY_LEVEL)
