"""Tracing with OpenTelemetry, off unless an OTLP endpoint is configured: spans of requests and of KV frames."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Protocol

import grpc
from opentelemetry import context, propagate, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.util.types import AttributeValue

from baton import __version__
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
    return trace.get_tracer("baton", __version__, schema_url=names.SCHEMA_URL)


def named_address(address: str) -> str:
    """Return the host:port of a listener, by the machine's name where it listens on every interface."""
    host, _, port = address.rpartition(":")
    with suppress(ValueError):  # of a name
        if ip_address(host.strip("[]")).is_unspecified:
            return f"{socket.gethostname()}:{port}"
    return address


@contextmanager
def span(
    name: str, kind: trace.SpanKind, attributes: Mapping[str, AttributeValue], carrier: Mapping[str, str] | None = None
) -> Iterator[trace.Span]:
    """Make a span current; nothing is made, and next to nothing paid, while tracing is off.

    Errors pass through untold: whoever knows whose fault one is tells the span, by `note_failure` or `note_status`.
    `name` has few values; `carrier` are headers with the caller's context, None: it is a child of the current span.
    """
    if not is_tracing():
        yield trace.INVALID_SPAN
        return
    parent = None if carrier is None else propagate.extract(carrier)
    with tracer().start_as_current_span(
        name, parent, kind, attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        yield current


def note_failure(span: trace.Span, error_type: str, description: str = "") -> None:
    """Note that what a span shows has failed, by no mistake of the client's; of error types there are few."""
    span.set_attribute(names.ERROR_TYPE, error_type)
    span.set_status(trace.StatusCode.ERROR, description)


def note_status(
    span: trace.Span, code: grpc.StatusCode, description: str = "", *, kind: trace.SpanKind = trace.SpanKind.SERVER
) -> None:
    """Note how a gRPC call ended: clients take all but OK for an error, servers what was no mistake of the client's."""
    span.set_attributes({names.RPC_RESPONSE_STATUS_CODE: code.name, names.RPC_GRPC_STATUS_CODE: code.value[0]})
    if code in SERVER_FAILURES or (kind is trace.SpanKind.CLIENT and code is not grpc.StatusCode.OK):
        note_failure(span, code.name, description)


_FAILURES = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
SERVER_FAILURES = frozenset(grpc.StatusCode[name] for name in _FAILURES)
"""Codes that are errors of the server, as OpenTelemetry's conventions for gRPC have it."""


def rpc_attributes(path: str, address: str) -> dict[str, str | int]:
    """Return the attributes of the spans of a call at host:port; their name is the path without its first slash."""
    method = path.removeprefix("/")
    system = {names.RPC_SYSTEM_NAME: "grpc", names.RPC_SYSTEM: "grpc", names.RPC_SERVICE: method.rpartition("/")[0]}
    return {**system, names.RPC_METHOD: method, **server_attributes(address)}


def server_attributes(address: str, default_port: int = 0) -> dict[str, str | int]:
    """Return the attributes of a server at "host:port" or "host"; none if the address is empty."""
    host, separator, port = address.rpartition(":")
    if not separator or port.endswith("]"):
        host, port = address, ""
    if not host:
        return {}
    number = int(port) if port.isascii() and port.isdigit() else default_port
    return {names.SERVER_ADDRESS: host.strip("[]"), **({names.SERVER_PORT: number} if number else {})}


def configure_tracing(service_name: str) -> None:
    """Export the spans of this process by OTLP over gRPC, if an endpoint is set; call it before channels are opened.

    The `OTEL_*` variables are honoured: endpoint, headers, sampler, resource attributes, batching, OTEL_SERVICE_NAME,
    OTEL_TRACES_EXPORTER=none and OTEL_SDK_DISABLED. OTEL_SERVICE_NAME wins over `service_name`.
    """
    if not has_endpoint(_ENDPOINTS) or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    max_events = None if "OTEL_SPAN_EVENT_COUNT_LIMIT" in os.environ else _MAX_SPAN_EVENTS
    limits = SpanLimits(max_events=max_events)
    provider = TracerProvider(resource=service_resource(service_name), span_limits=limits)
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
    detected = Resource.create()
    given = {names.SERVICE_NAME: service_name, names.SERVICE_NAMESPACE: "baton", names.SERVICE_VERSION: __version__}
    own = Resource(given, detected.schema_url or names.SCHEMA_URL)
    has_name = not str(detected.attributes.get(names.SERVICE_NAME, _UNKNOWN)).startswith(_UNKNOWN)
    return own.merge(detected) if has_name else detected.merge(own)


def current_context() -> dict[str, str]:
    """Return the current trace context by header name; empty while tracing is off."""
    carrier: dict[str, str] = {}
    if is_tracing():
        propagate.inject(carrier)
    return carrier


def current_metadata() -> tuple[tuple[str, str], ...]:
    """Return the current trace context as metadata of a gRPC call."""
    return tuple(current_context().items())


class RequestSpan:
    """A server span as a call of its own would have it; nothing while tracing is off."""

    def __init__(self, method: str, carrier: Mapping[str, str], address: str) -> None:
        """Make it."""
        self._address = address
        self._method = method
        self._carrier = carrier
        self._span: trace.Span | None = None

    def begin(self) -> None:
        """Open the span and make it current; the caller runs this in a `contextvars.Context` of the request's own."""
        if is_tracing():
            self._span = begin_server_span(tracer(), self._method, self._carrier, self._address)

    def end(self, code: grpc.StatusCode = grpc.StatusCode.OK, description: str = "") -> None:
        """Close the span, with what the call would have ended with."""
        if self._span is not None:
            note_status(self._span, code, description)
            self._span.end()
            self._span = None


def begin_server_span(tracer: trace.Tracer, method: str, carrier: Mapping[str, str], address: str) -> trace.Span:
    """Open the span of a call at its server, at host:port, and make it current for the rest of the task."""
    parent = propagate.extract(carrier)
    attributes = rpc_attributes(method, address)
    span = tracer.start_span(method.removeprefix("/"), parent, trace.SpanKind.SERVER, attributes)
    context.attach(trace.set_span_in_context(span, parent))
    return span


class LayerSpans:
    """Makes the spans of one KV stream, as children of the span that is current; nothing where that is not recorded.

    A trace view draws spans, not events, as bars: they show how the layers' computation and transfer overlap. `verb` is
    "compute" or "transfer"; `clock` is that of the times that `add` takes, seconds.
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
