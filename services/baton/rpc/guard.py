"""Error mapping for every servicer: a BatonError ends the call with its status, a bug with INTERNAL and a traceback."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import grpc

from baton.errors import BatonError
from baton.rpc.status import abort

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Ends calls that raise with the right status; calls of other packages (health, reflection) pass untouched."""

    async def intercept_service(  # type: ignore[override]
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],  # type: ignore[type-arg]
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:  # type: ignore[type-arg]
        """Return the handler of the call with its behaviour guarded."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/baton."):
            return handler
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.request_streaming:
            make_stream, make_unary = grpc.stream_stream_rpc_method_handler, grpc.stream_unary_rpc_method_handler
            behavior = handler.stream_stream if handler.response_streaming else handler.stream_unary
        else:
            make_stream, make_unary = grpc.unary_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
            behavior = handler.unary_stream if handler.response_streaming else handler.unary_unary
        if handler.response_streaming and inspect.isasyncgenfunction(behavior):
            return make_stream(_guard_stream(behavior), *coders)  # type: ignore[arg-type]
        if handler.response_streaming:  # a coroutine that writes its responses to the context
            return make_stream(_guard_unary(behavior), *coders)  # type: ignore[arg-type]
        return make_unary(_guard_unary(behavior), *coders)  # type: ignore[arg-type]


def _guard_unary(behavior: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    async def guarded(request: object, context: Context) -> object:
        try:
            return await behavior(request, context)
        except Exception as error:
            await _abort(context, error)
            raise

    return guarded


def _guard_stream(behavior: Callable[..., AsyncIterator[object]]) -> Callable[..., AsyncIterator[object]]:
    async def guarded(request: object, context: Context) -> AsyncIterator[object]:
        try:
            async for response in behavior(request, context):
                yield response
        except Exception as error:
            await _abort(context, error)
            raise

    return guarded


async def _abort(context: Context, error: Exception) -> None:
    if isinstance(error, BatonError):
        await abort(context, error)
    if not isinstance(error, grpc.aio.AbortError):
        log.exception("call_failed")
        await abort(context, BatonError(f"internal error: {type(error).__name__}"))
