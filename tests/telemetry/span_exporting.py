"""Spans of this process, in the tests' hands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.util._once import Once


def forget_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no tracer provider, so that one can be set: OpenTelemetry takes one per process."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())


@contextmanager
def exporting_to(exporter: SpanExporter, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give an exporter every span as it ends."""
    forget_provider(monkeypatch)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    yield
    provider.shutdown()
