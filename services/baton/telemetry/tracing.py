"""Tracing with OpenTelemetry, off unless an OTLP endpoint is configured: spans of requests and of KV frames."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from opentelemetry import context, propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider

from baton.errors import BatonError
from baton.telemetry import names

log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_UNKNOWN = "unknown_service"
"""What OpenTelemetry calls a process that nobody named; it appends the program."""

_MAX_SPAN_EVENTS = 8192
MAX_SPANS = 512
"""Of one stream; later frames have none."""

_SECOND_NANOSECONDS = 1e9


def tracer() -> trace.Tracer:
    """Return the tracer of Baton; its spans go nowhere unless `configure_tracing` found an endpoint."""
    return trace.get_tracer("baton")


def server_span(method: str) -> str:
    """Return the name of a server span: the method without its slash, e.g. `baton.internal.v1.RouterService/Place`."""
    return method.removeprefix("/")


def rpc_attributes(method: str) -> dict[str, str]:
    """Return the attributes of a server span for a method such as "/baton.internal.v1.RouterService/Place"."""
    service, _, name = method.removeprefix("/").rpartition("/")
    return {names.RPC_SYSTEM: "grpc", names.RPC_SERVICE: service, names.RPC_METHOD: name}


def configure_tracing(service_name: str) -> None:
    """Export the spans of this process by OTLP over gRPC, if an endpoint is set; call it before channels are opened.

    The `OTEL_*` variables are honoured: endpoint, headers, sampler, resource attributes, batching, OTEL_SERVICE_NAME,
    OTEL_TRACES_EXPORTER=none and OTEL_SDK_DISABLED.

    Args:
        service_name: `service.name` of the resource, unless OTEL_SERVICE_NAME says otherwise.
    """
    if not has_endpoint(_ENDPOINTS) or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=service_resource(service_name), span_limits=_span_limits())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    log.info("tracing_on service=%s", service_name)


def shutdown_tracing() -> None:
    """Send the spans that wait and stop; does nothing if tracing is off."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()


def is_tracing() -> bool:
    """Return whether spans are recorded in this process."""
    return isinstance(trace.get_tracer_provider(), TracerProvider)


def has_endpoint(variables: Sequence[str]) -> bool:
    """Return whether one of the variables is set and the SDK is not disabled."""
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_disabled and any(os.environ.get(variable) for variable in variables)


def service_resource(service_name: str) -> Resource:
    """Return the resource of this process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the given name."""
    own = Resource({names.SERVICE_NAME: service_name, names.SERVICE_NAMESPACE: "baton"})
    detected = Resource.create()
    has_name = not str(detected.attributes.get(names.SERVICE_NAME, _UNKNOWN)).startswith(_UNKNOWN)
    return own.merge(detected) if has_name else detected.merge(own)


def _span_limits() -> SpanLimits:
    """Return limits that hold two events per layer and chunk of a long prompt; OpenTelemetry's own default is 128."""
    return SpanLimits(max_events=None if "OTEL_SPAN_EVENT_COUNT_LIMIT" in os.environ else _MAX_SPAN_EVENTS)


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
            method: Of the call, e.g. "/baton.internal.v1.DecodeService/Serve".
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
            server_span(self._method),
            context=parent,
            kind=trace.SpanKind.SERVER,
            attributes=rpc_attributes(self._method),
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


class LayerSpans:
    """Makes the spans of one KV stream, as children of the span that is current; nothing where that is not recorded.

    A trace view draws spans, not events, as bars: they show how the layers' computation and transfer overlap.

    Args:
        verb: What a span shows: "compute" or "transfer".
        clock: Clock of the times that `add` takes, seconds.
    """

    def __init__(self, verb: names.LayerVerb, clock: Callable[[], float]) -> None:
        self._verb = verb
        self._since_epoch = time.time_ns() - round(clock() * _SECOND_NANOSECONDS)
        self._num_spans = 0

    def add(self, frame: FrameExtent, begin: float, end: float) -> None:
        """Add the span of a frame whose layers were computed, or on their way, from `begin` to `end`."""
        if self._num_spans == MAX_SPANS or not trace.get_current_span().is_recording():
            return
        self._num_spans += 1
        span = tracer().start_span(
            names.layers_span(self._verb, frame.layer_begin, frame.num_layers),
            attributes=frame_attributes(frame),
            start_time=self._nanoseconds(begin),
        )
        span.end(self._nanoseconds(max(begin, end)))

    def _nanoseconds(self, seconds: float) -> int:
        return self._since_epoch + round(seconds * _SECOND_NANOSECONDS)


class FrameExtent(Protocol):
    """What is told of a frame; `baton.kv.stream.KvFrame` is one."""

    @property
    def layer_begin(self) -> int:
        """First layer."""

    @property
    def num_layers(self) -> int:
        """Layers."""

    @property
    def token_begin(self) -> int:
        """First position."""

    @property
    def num_tokens(self) -> int:
        """Positions."""

    @property
    def num_bytes(self) -> int:
        """Payload."""


def frame_attributes(frame: FrameExtent) -> dict[str, int]:
    """Return the attributes of the events of a frame."""
    return {
        names.LAYER: frame.layer_begin,
        names.LAYER_COUNT: frame.num_layers,
        names.TOKEN_START: frame.token_begin,
        names.TOKEN_COUNT: frame.num_tokens,
        names.BYTE_COUNT: frame.num_bytes,
    }
