"""Error mapping for every servicer: a BatonError ends the call with its status, a bug with INTERNAL and a traceback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from baton.errors import BatonError
from baton.rpc.decoding import decoded, tolerant
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
