"""The span of a request that shares its call with others: its trace context travels in the message."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import context, propagate, trace

from baton.errors import BatonError
from baton.telemetry import names
from baton.telemetry.tracing import is_tracing, tracer


def current_context() -> dict[str, str]:
    """Return the current trace context by header name; empty while tracing is off."""
    carrier: dict[str, str] = {}
    if is_tracing():
        propagate.inject(carrier)
    return carrier


class RequestSpan:
    """A server span as a call of its own would have it; nothing while tracing is off."""

    def __init__(self, method: str, carrier: Mapping[str, str]) -> None:
        """Make it.

        Args:
            method: Of the call, e.g. "/baton.v1.DecodeService/Serve".
            carrier: What `current_context` returned to the caller.
        """
        self._method = method
        self._carrier = carrier
        self._span: trace.Span | None = None

    def begin(self) -> None:
        """Open the span and make it current; the caller runs this in a `contextvars.Context` of the request's own."""
        if not is_tracing():
            return
        parent = propagate.extract(self._carrier)
        self._span = tracer().start_span(
            names.server_span(self._method),
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes=names.rpc_attributes(self._method),
        )
        context.attach(trace.set_span_in_context(self._span, parent))

    def end(self, error: BatonError | None = None) -> None:
        """Close the span, with an error if the request failed."""
        if self._span is None:
            return
        if error is not None:
            self._span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error.message}")
        self._span.end()
        self._span = None
