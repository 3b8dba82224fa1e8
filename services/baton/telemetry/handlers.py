"""Wraps the behaviour of a gRPC handler, whichever of the call shapes it has."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import grpc

Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"
Handler: TypeAlias = "grpc.RpcMethodHandler[object, object]"
Behavior = Callable[..., Awaitable[object]]
"""Answers with one value, or is a coroutine that writes its responses to the context."""
Deserializer = Callable[[bytes], object]
"""Makes a request from its bytes."""
StreamBehavior = Callable[..., AsyncIterator[object]]
"""Yields its responses."""


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
