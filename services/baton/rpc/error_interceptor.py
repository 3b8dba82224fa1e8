"""Error mapping for every servicer: a BatonError ends the call with its status, a bug with INTERNAL and a traceback.

Requests that are no messages, e.g. invalid UTF-8 in a string: refused like any other bad request.

grpcio ends a call whose deserializer raises with UNKNOWN, and writes a traceback. So deserializers here return what
they could not read as a value, and the guard raises it where errors become answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError

from baton.errors import BatonError, InvalidFieldError
from baton.rpc.status import abort
from baton.telemetry.handlers import Behavior, Context, Handler, StreamBehavior, wrap_handler

log = logging.getLogger(__name__)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls that raise with the right status; calls of other packages (health, reflection) pass untouched."""

    async def intercept_service(  # type: ignore[override]
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of the call with its behaviour guarded."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/baton."):
            return handler
        return wrap_handler(handler, _guard, _guard_stream, tolerant)


def _guard(behavior: Behavior) -> Behavior:
    async def guarded(request: object, context: Context) -> object:
        try:
            return await behavior(decoded(request), context)
        except Exception as error:
            await _abort(context, error)
            raise

    return guarded


def _guard_stream(behavior: StreamBehavior) -> StreamBehavior:
    async def guarded(request: object, context: Context) -> AsyncIterator[object]:
        try:
            async for response in behavior(decoded(request), context):
                yield response
        except Exception as error:
            await _abort(context, error)
            raise

    return guarded


async def _abort(context: Context, error: Exception) -> None:
    if _is_peer_gone(error):
        raise asyncio.CancelledError from error
    if isinstance(error, BatonError):
        await abort(context, error)
    is_stopping = type(error).__name__ == "_ServerStoppedError"  # private to grpcio: the drain has cut the call
    if not isinstance(error, grpc.aio.AbortError) and not is_stopping:
        log.exception("call_failed")
        await abort(context, BatonError(f"internal error: {type(error).__name__}"))


def _is_peer_gone(error: BaseException) -> bool:
    """Return whether a response could not be written: the call has ended, and its cancellation is on the way."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_peer_gone(part) for part in error.exceptions)
    return type(error).__name__ == "ExecuteBatchError"  # private to grpcio


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
