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
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from baton.errors import BatonError, InvalidFieldError
from baton.rpc.status import abort

log = logging.getLogger(__name__)

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"
Handler: TypeAlias = "grpc.RpcMethodHandler[object, object]"
Deserializer = Callable[[bytes], object]
"""Makes a request from its bytes."""
Around = Callable[[Context], AbstractAsyncContextManager[None]]
"""What a call is served within; its errors end the call."""


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
        return wrap_handler(handler, _told_errors, take=decoded, wrap_deserializer=tolerant)


@asynccontextmanager
async def _told_errors(context: Context) -> AsyncIterator[None]:
    """End a call with the status of what is raised."""
    try:
        yield
    except Exception as error:
        await _abort(context, error)
        raise


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
    around: Around | None = None,
    *,
    take: Callable[[object], object] = lambda request: request,
    wrap_deserializer: Callable[[Deserializer | None], Deserializer | None] = lambda deserialize: deserialize,
) -> Handler:
    """Return a handler of the same shape that serves a call within `around`; None: the behaviour stays as it is.

    `take` returns what is served of a request, or of a stream of them; `wrap_deserializer` gives the new deserializer.
    """
    is_streamed = handler.response_streaming
    make: Any
    behavior: Any
    if handler.request_streaming:
        make = grpc.stream_stream_rpc_method_handler if is_streamed else grpc.stream_unary_rpc_method_handler
        behavior = handler.stream_stream if is_streamed else handler.stream_unary
    else:
        make = grpc.unary_stream_rpc_method_handler if is_streamed else grpc.unary_unary_rpc_method_handler
        behavior = handler.unary_stream if is_streamed else handler.unary_unary
    if around is not None:
        behavior = (_yielding if inspect.isasyncgenfunction(behavior) else _answering)(behavior, around, take)
    wrapped: Handler = make(behavior, wrap_deserializer(handler.request_deserializer), handler.response_serializer)
    return wrapped


def _answering(behavior: Any, around: Around, take: Callable[[object], object]) -> Any:
    """Return what answers with one value, or writes its responses to the context."""

    async def serve(request: object, context: Context) -> object:
        async with around(context):
            return await behavior(take(request), context)

    return serve


def _yielding(behavior: Any, around: Around, take: Callable[[object], object]) -> Any:
    """Return what writes to the context what is yielded: a generator that gRPC drops ends when somebody collects it."""

    async def serve(request: object, context: Context) -> None:
        async with around(context), aclosing(behavior(take(request), context)) as responses:
            async for response in responses:
                await context.write(response)

    return serve
