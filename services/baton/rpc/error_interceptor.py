"""Error mapping for every servicer: a BatonError ends the call with its status, a bug with INTERNAL and a traceback.

A request that is no message, e.g. invalid UTF-8 in a string, is refused like any other bad request. grpcio would end
a call whose deserializer raises with UNKNOWN, and write a traceback: so deserializers return `Undecodable` instead, and
the interceptor raises the error where errors become answers.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import grpc
from google.protobuf.message import DecodeError

from baton.errors import BatonError, InvalidFieldError
from baton.rpc.status import abort

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"
Handler: TypeAlias = "grpc.RpcMethodHandler[object, object]"
Behavior = Callable[..., Awaitable[object]]
"""Answers with one value, or is a coroutine that writes its responses to the context."""
Deserializer = Callable[[bytes], object]
"""Makes a request from its bytes."""
StreamBehavior = Callable[..., AsyncIterator[object]]
"""Yields its responses."""


class HandlerInterceptor(grpc.aio.ServerInterceptor):
    """Puts something around the handlers of a server's methods; a method that there is not passes untouched."""

    @abstractmethod
    def intercept(self, handler: Handler, call: grpc.HandlerCallDetails) -> Handler:
        """Return the handler that serves a call instead of the given one, which may be the same."""

    async def intercept_service(  # type: ignore[override]
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of the call; None: there is no such method."""
        handler = await continuation(handler_call_details)
        return handler and self.intercept(handler, handler_call_details)


class ErrorInterceptor(HandlerInterceptor):
    """Ends calls that raise with the right status; calls of other packages (health, reflection) pass untouched."""

    def intercept(self, handler: Handler, call: grpc.HandlerCallDetails) -> Handler:
        """Return the handler with its behaviour guarded."""
        if not call.method.startswith("/baton."):
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
    """Return a request, or a stream of requests, that raises InvalidFieldError where it is `Undecodable`."""
    if isinstance(request, Undecodable):
        raise InvalidFieldError("request", request.problem)
    return _decoded_stream(request) if isinstance(request, AsyncIterator) else request


async def _decoded_stream(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    async for request in requests:
        yield decoded(request)


def strings_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> Mapping[str, str]:
    """Return those of a call's metadata that are text; binary ones are left out."""
    return {name: value for name, value in metadata or () if isinstance(value, str)}


def wrap_handler(
    handler: Handler,
    wrap: Callable[[Behavior], Behavior],
    wrap_stream: Callable[[StreamBehavior], StreamBehavior],
    wrap_deserializer: Callable[[Deserializer | None], Deserializer | None] = lambda deserialize: deserialize,
) -> Handler:
    """Return a handler of the same shape whose behaviour, and deserializer, are wrapped."""
    coders = (wrap_deserializer(handler.request_deserializer), handler.response_serializer)
    if handler.request_streaming:
        make_stream, make_unary = grpc.stream_stream_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        behavior = handler.stream_stream if handler.response_streaming else handler.stream_unary
    else:
        make_stream, make_unary = grpc.unary_stream_rpc_method_handler, grpc.unary_unary_rpc_method_handler
        behavior = handler.unary_stream if handler.response_streaming else handler.unary_unary
    if not handler.response_streaming:
        return make_unary(wrap(behavior), *coders)  # type: ignore[arg-type]
    if inspect.isasyncgenfunction(behavior):
        return make_stream(wrap_stream(behavior), *coders)
    return make_stream(wrap(behavior), *coders)  # type: ignore[arg-type]
