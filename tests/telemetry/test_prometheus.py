"""Metrics in Prometheus's text format."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_trace_id
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from baton.telemetry.prometheus import Scrape, scraped_meter


def test_names_units_and_labels_are_written_as_prometheus_reads_them() -> None:
    """Dots become underscores, units suffixes, quotes and line breaks escapes."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("test")
    meter.create_counter("a.bytes", unit="By", description="What\nhow").add(3, {"k.x": 'say "hi"\\\n'})
    meter.create_up_down_counter("b.active", unit="{thing}").add(-1)
    meter.create_gauge("b.used", unit="1").set(0.5)
    histogram = meter.create_histogram("c.time", unit="s", explicit_bucket_boundaries_advisory=[0.5, 2.0])
    for seconds in (0.25, 1.0, 4.0):
        histogram.record(seconds)
    text = Scrape(reader).text().decode()
    provider.shutdown()

    assert text.splitlines() == [
        "# HELP a_bytes_bytes_total What\\nhow",
        "# TYPE a_bytes_bytes_total counter",
        'a_bytes_bytes_total{k_x="say \\"hi\\"\\\\\\n"} 3',
        "# HELP b_active ",
        "# TYPE b_active gauge",
        "b_active -1",
        "# HELP b_used_ratio ",
        "# TYPE b_used_ratio gauge",
        "b_used_ratio 0.5",
        "# HELP c_time_seconds ",
        "# TYPE c_time_seconds histogram",
        'c_time_seconds_bucket{le="0.5"} 1',
        'c_time_seconds_bucket{le="2"} 2',
        'c_time_seconds_bucket{le="+Inf"} 3',
        "c_time_seconds_sum 5.25",
        "c_time_seconds_count 3",
    ]


def test_a_meter_without_values_gives_nothing() -> None:
    """Not an error: nothing has happened yet."""
    with scraped_meter() as (_, scrape):
        assert scrape.text() == b""


def test_open_metrics_has_an_example_of_a_trace_per_bucket() -> None:
    """For who asks for the format by `Accept`; the family of a counter has no suffix there, and the text an end."""
    reader = InMemoryMetricReader()
    provider, tracer = MeterProvider([reader], shutdown_on_exit=False), TracerProvider().get_tracer("test")
    meter = provider.get_meter("test")
    meter.create_counter("a.count").add(1)
    histogram = meter.create_histogram("c.time", unit="s", explicit_bucket_boundaries_advisory=[0.5])
    with tracer.start_as_current_span("request") as span:
        histogram.record(0.25)
    histogram.record(4.0)
    scrape = Scrape(reader)
    assert b"trace_id" not in scrape.text()
    texts = [scrape.text("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").decode() for _ in range(2)]
    provider.shutdown()

    assert texts[0] == texts[1]  # whoever reads first takes nothing from the others
    text = texts[1]

    trace_id = format_trace_id(span.get_span_context().trace_id)
    lines = text.splitlines()
    assert lines[:3] == ["# HELP a_count ", "# TYPE a_count counter", "a_count_total 1"]
    assert lines[5].startswith(f'c_time_seconds_bucket{{le="0.5"}} 1 # {{trace_id="{trace_id}"}} 0.25 ')
    assert lines[6] == 'c_time_seconds_bucket{le="+Inf"} 2'
    assert lines[-1] == "# EOF"
    assert [family.name for family in text_string_to_metric_families(text)] == ["a_count", "c_time_seconds"]
