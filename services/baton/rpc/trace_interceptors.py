"""Interceptors that carry the trace context through gRPC metadata: W3C, or what OTEL_PROPAGATORS says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

import grpc
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace

from baton.rpc.error_interceptor import Behavior, Context, Handler, StreamBehavior, wrap_handler
from baton.telemetry import names
from baton.telemetry.tracing import is_tracing, rpc_attributes, server_span, tracer

Details: TypeAlias = grpc.aio.ClientCallDetails
Continuation: TypeAlias = Callable[[Details, object], Awaitable[object]]


def client_interceptors() -> Sequence[grpc.aio.ClientInterceptor]:
    """Return the interceptors that inject the trace context into calls; none while tracing is off."""
    return make_client_interceptors() if is_tracing() else ()


def server_interceptors() -> Sequence[grpc.aio.ServerInterceptor]:
    """Return the interceptors that continue the caller's trace; none while tracing is off."""
    return (TraceServerInterceptor(tracer()),) if is_tracing() else ()


def make_client_interceptors() -> Sequence[grpc.aio.ClientInterceptor]:
    """Return one interceptor per shape of call: grpc.aio files an interceptor under a single shape."""
    return (_UnaryUnary(), _UnaryStream(), _StreamUnary(), _StreamStream())


def inject_context(details: Details) -> Details:
    """Return call details whose metadata carry the current trace context.

    The call itself is left alone: grpc.aio makes it from these details, with its own reading, writing and cancelling.
    """
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    if not carrier:
        return details
    metadata = grpc.aio.Metadata(*(details.metadata or ()), *carrier.items())
    return details._replace(metadata=metadata)  # type: ignore[attr-defined,no-any-return]


async def _intercept(
    _self: object, continuation: Continuation, client_call_details: Details, request_or_iterator: object
) -> object:
    """Make a call of any shape from details that carry the trace context."""
    return await continuation(inject_context(client_call_details), request_or_iterator)


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary = _intercept  # type: ignore[assignment]


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream = _intercept  # type: ignore[assignment]


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary = _intercept  # type: ignore[assignment]


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream = _intercept  # type: ignore[assignment]


class TraceServerInterceptor(grpc.aio.ServerInterceptor):
    """Opens a server span for each call that serves a request, as a child of the caller's; others pass untouched."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    async def intercept_service(  # type: ignore[override]
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the handler of the call with a span around its behaviour."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or not method.startswith("/baton.") or method in names.BACKGROUND_METHODS:
            return handler
        begin = _SpanStart(self._tracer, handler_call_details)
        return wrap_handler(handler, partial(_trace, begin=begin), partial(_trace_stream, begin=begin))


class _SpanStart:
    """Opens the span of one call and makes it current.

    grpc.aio runs every call in a task of its own, so the context that is attached here ends with that task; detaching
    it would fail where an abandoned stream is closed from another task.
    """

    def __init__(self, tracer: trace.Tracer, details: grpc.HandlerCallDetails) -> None:
        self._tracer = tracer
        self._method = details.method
        self._carrier = {key: value for key, value in details.invocation_metadata or () if isinstance(value, str)}

    def __call__(self) -> trace.Span:
        parent = propagate.extract(self._carrier)
        span = self._tracer.start_span(
            server_span(self._method),
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes=rpc_attributes(self._method),
        )
        otel_context.attach(trace.set_span_in_context(span, parent))
        return span


def _trace(behavior: Behavior, begin: Callable[[], trace.Span]) -> Behavior:
    async def traced(request: object, context: Context) -> object:
        span = begin()
        try:
            return await behavior(request, context)
        except BaseException as error:
            _record(span, error, context)
            raise
        finally:
            span.end()

    return traced


def _trace_stream(behavior: StreamBehavior, begin: Callable[[], trace.Span]) -> StreamBehavior:
    async def traced(request: object, context: Context) -> AsyncIterator[object]:
        span = begin()
        try:
            async for response in behavior(request, context):
                yield response
        except BaseException as error:
            _record(span, error, context)
            raise
        finally:
            span.end()

    return traced


def _record(span: trace.Span, error: BaseException, context: Context) -> None:
    code = context.code()
    if isinstance(error, grpc.aio.AbortError):
        description = str(context.details())
    else:
        description = f"{type(error).__name__}: {error}"
    span.set_attribute(
        names.RPC_GRPC_STATUS_CODE, code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)
    )
    span.set_status(trace.StatusCode.ERROR, description)
