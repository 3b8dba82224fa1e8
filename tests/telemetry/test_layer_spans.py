"""Child spans that show when layers were computed and when they were on their way."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from baton.kv.stream import KvFrame
from baton.telemetry import tracing
from baton.telemetry.tracing import LayerSpans
from telemetry.span_exporting import exporting_to


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """Return where finished spans go."""
    exporter = InMemorySpanExporter()
    with exporting_to(exporter, monkeypatch):
        yield exporter


def _frame(layer_begin: int, num_layers: int = 1) -> KvFrame:
    return KvFrame(layer_begin, num_layers, token_begin=16, num_tokens=4, keys=b"k", values=b"v")


def test_each_frame_is_a_child_span_from_its_begin_to_its_end(exported: InMemorySpanExporter) -> None:
    """Times by the stream's clock become times since 1970; layers and positions are attributes."""
    before = time.time_ns()
    with trace.get_tracer("test").start_as_current_span("receive_kv") as parent:
        spans = LayerSpans("transfer", lambda: 100.0)
        spans.add(_frame(2), 100.5, 100.75)
        spans.add(_frame(3, 4), 100.75, 101.0)

    single, group, _ = exported.get_finished_spans()
    assert (single.name, group.name) == ("transfer layer 2", "transfer layers 3-6")
    assert single.parent is not None
    assert single.parent.span_id == parent.get_span_context().span_id
    assert single.start_time is not None
    assert single.end_time is not None
    assert single.end_time - single.start_time == 250_000_000
    assert before + 500_000_000 <= single.start_time <= time.time_ns() + 500_000_000
    assert group.attributes is not None
    assert group.attributes["baton.layer_count"] == 4
    assert group.attributes["baton.token_start"] == 16


def test_a_stream_of_many_frames_has_a_bounded_number_of_spans(
    exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of a hundred thousand tokens must not fill the exporter's queue."""
    monkeypatch.setattr(tracing, "MAX_SPANS", 3)
    with trace.get_tracer("test").start_as_current_span("receive_kv"):
        spans = LayerSpans("compute", lambda: 0.0)
        for layer in range(5):
            spans.add(_frame(layer), layer, layer + 1)

    assert [span.name for span in exported.get_finished_spans()][:-1] == [
        f"compute layer {layer}" for layer in range(3)
    ]


def test_a_request_that_is_not_sampled_has_none(exported: InMemorySpanExporter) -> None:
    """Without a recorded parent nothing is made, and nothing is paid."""
    LayerSpans("compute", lambda: 0.0).add(_frame(0), 0.0, 1.0)

    assert exported.get_finished_spans() == ()
