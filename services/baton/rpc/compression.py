"""Compressed messages on a public port: requests are inflated within a bound, answers compressed where it pays.

grpcio's own inflating has no bound: a message of 8 MiB may become 8 GiB before anybody sees its size.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable

import grpc
from google.protobuf.message import DecodeError, Message

from baton.rpc.error_interceptor import Context, Deserializer, Handler, HandlerInterceptor, wrap_handler

_LEAST_BYTES, _MOST_BYTES = 1400, 128 << 10
"""Messages that are compressed: less fits into a packet, more would keep the event loop for over a millisecond."""
_GZIP, _GZIP_BITS = b"\x1f\x8b", 31
"""How gzip begins, and no message of Protobuf: it would be field 3, of a type that there is not."""

OPTIONS = (
    ("grpc.compression_enabled_algorithms_bitset", 0b101),  # none, and gzip
    ("grpc.default_compression_level", 1),
    ("grpc.per_message_decompression", 0),
)
"""Of a server that has `InflatingInterceptor`."""


class InflatingInterceptor(HandlerInterceptor):
    """Inflates requests of every service."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def intercept(self, handler: Handler, call: grpc.HandlerCallDetails) -> Handler:  # noqa: ARG002
        """Return the handler, which takes compressed requests."""
        return wrap_handler(handler, wrap_deserializer=self._inflating)

    def _inflating(self, deserialize: Deserializer | None) -> Deserializer | None:
        return deserialize and (lambda data: deserialize(self._inflated(data)))

    def _inflated(self, data: bytes) -> bytes:
        if not data.startswith(_GZIP):
            return data
        decompressor = zlib.decompressobj(_GZIP_BITS)
        try:
            message = decompressor.decompress(data, self._max_bytes + 1)
        except zlib.error as error:
            raise DecodeError(f"it is not valid gzip: {error}") from error
        if len(message) > self._max_bytes or not decompressor.eof:
            is_long = len(message) > self._max_bytes
            raise DecodeError(
                f"expected {self._max_bytes} bytes at most, inflated" if is_long else "its gzip ends early"
            )
        return message


def compress_where_it_pays(message: Message, context: Context) -> None:
    """Have the next response of a call compressed only if it is neither small nor large."""
    if not _LEAST_BYTES <= message.ByteSize() <= _MOST_BYTES:
        context.disable_next_message_compression()


def writer_of(context: Context) -> Callable[[Message], Awaitable[None]]:
    """Return what writes the responses of a call, compressed where it pays and the client takes that."""

    async def write(message: Message) -> None:
        compress_where_it_pays(message, context)
        await context.write(message)

    return write
