"""Spans of calls at their servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import grpc
from opentelemetry import trace

from baton.rpc.error_interceptor import Context, Handler, HandlerInterceptor, strings_of, wrap_handler
from baton.rpc.status import status_of
from baton.telemetry import names
from baton.telemetry.tracing import begin_server_span, is_tracing, named_address, note_status, tracer


def server_interceptors(address: str) -> Sequence[grpc.aio.ServerInterceptor]:
    """Return the interceptors that continue the caller's trace at host:port; none while tracing is off."""
    return (TraceServerInterceptor(tracer(), named_address(address)),) if is_tracing() else ()


class TraceServerInterceptor(HandlerInterceptor):
    """Opens a server span for each call that serves a request, as a child of the caller's; others pass untouched.

    grpc.aio runs every call in a task of its own, so the context that is attached ends with that task; detaching it
    would fail where an abandoned stream is closed from another task.
    """

    def __init__(self, tracer: trace.Tracer, address: str = "") -> None:
        self._tracer = tracer
        self._address = address

    def intercept(self, handler: Handler, call: grpc.HandlerCallDetails) -> Handler:
        """Return the handler with a span around its behaviour."""
        if not call.method.startswith("/baton.") or call.method in names.BACKGROUND_METHODS:
            return handler
        carrier = strings_of(call.invocation_metadata)
        begin = partial(begin_server_span, self._tracer, call.method, carrier, self._address)
        return wrap_handler(handler, partial(_server_span, begin))


@asynccontextmanager
async def _server_span(begin: Callable[[], trace.Span], context: Context) -> AsyncIterator[None]:
    span = begin()
    try:
        yield
    except BaseException as error:
        code, description = status_of(error)
        told = context.code()  # a number, 0 before there is a status
        code = _CODES.get(told.value[0] if isinstance(told, grpc.StatusCode) else told or 0, code)
        note_status(span, code, str(context.details()) if isinstance(error, grpc.aio.AbortError) else description)
        raise
    else:
        note_status(span, grpc.StatusCode.OK)
    finally:
        span.end()


_CODES = {code.value[0]: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
