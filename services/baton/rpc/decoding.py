"""Requests that are no messages, e.g. invalid UTF-8 in a string: refused like any other bad request.

grpcio ends a call whose deserializer raises with UNKNOWN, and writes a traceback. So deserializers here return what
they could not read as a value, and the guard raises it where errors become answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from baton.errors import InvalidFieldError


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands for a request that is no message."""

    problem: str
    """What is wrong with it."""


def tolerant(deserialize: Callable[[bytes], object] | None) -> Callable[[bytes], object] | None:
    """Return a deserializer that gives `Undecodable` where the given one raises; None: bytes stay bytes."""
    if deserialize is None:
        return None

    def deserialize_tolerantly(data: bytes) -> object:
        try:
            return deserialize(data)
        except (DecodeError, UnicodeDecodeError) as error:
            return Undecodable(str(error))

    return deserialize_tolerantly


def decoded(request: object) -> object:
    """Return a request, or a stream of requests, that raises where it is `Undecodable`.

    Raises:
        InvalidFieldError: If the request is no message.
    """
    if isinstance(request, Undecodable):
        raise InvalidFieldError("request", request.problem)
    return _decoded_stream(request) if isinstance(request, AsyncIterator) else request


async def _decoded_stream(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    async for request in requests:
        yield decoded(request)
