"""The metrics of a process in Prometheus's text format, collected when they are asked for.

Source: https://prometheus.io/docs/instrumenting/exposition_formats (text format 0.0.4), with names and units as
OpenTelemetry's specification translates them for Prometheus.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from opentelemetry import metrics
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    Gauge,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    MetricsData,
    NumberDataPoint,
    Sum,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNITS = {"s": "_seconds", "By": "_bytes"}
"""Suffix of a name by its UCUM unit; counted things have none."""


class Scrape:
    """The metrics of one meter."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        self._reader = reader

    def text(self) -> bytes:
        """Return all values as they are."""
        data = self._reader.get_metrics_data()
        return render(data) if data is not None else b""


class ScrapedMeter(NamedTuple):
    """A meter, and what reads it."""

    meter: Meter
    scrape: Scrape


@contextmanager
def scraped_meter() -> Iterator[ScrapedMeter]:
    """Yield a meter that can be read here; what is exported by OTLP, if anything is, stays exported."""
    reader, provider = InMemoryMetricReader(), metrics.get_meter_provider()
    if isinstance(provider, MeterProvider):
        provider.add_metric_reader(reader)
        try:
            yield ScrapedMeter(provider.get_meter("baton"), Scrape(reader))
        finally:
            provider.remove_metric_reader(reader)
        return
    own = MeterProvider([reader], shutdown_on_exit=False)
    try:
        yield ScrapedMeter(own.get_meter("baton"), Scrape(reader))
    finally:
        own.shutdown()


def render(data: MetricsData) -> bytes:
    """Return metrics as text."""
    lines = [
        line
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for line in _metric_lines(metric)
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _metric_lines(metric: Metric) -> Iterator[str]:
    is_counter = isinstance(metric.data, Sum) and metric.data.is_monotonic
    name = metric.name.replace(".", "_") + _UNITS.get(metric.unit or "", "") + ("_total" if is_counter else "")
    is_number = isinstance(metric.data, Sum | Gauge)
    yield f"# HELP {name} {_escape(metric.description or '')}"
    yield f"# TYPE {name} {'counter' if is_counter else 'gauge' if is_number else 'histogram'}"
    for point in metric.data.data_points:
        if isinstance(point, NumberDataPoint):
            yield _line(name, point.attributes, point.value)
        elif isinstance(point, HistogramDataPoint):
            yield from _histogram_lines(name, point)


def _histogram_lines(name: str, point: HistogramDataPoint) -> Iterator[str]:
    count = 0
    bounds = [*(f"{bound:g}" for bound in point.explicit_bounds), "+Inf"]
    for bound, bucket_count in zip(bounds, point.bucket_counts, strict=True):
        count += bucket_count
        yield _line(f"{name}_bucket", {**(point.attributes or {}), "le": bound}, count)
    yield _line(f"{name}_sum", point.attributes, point.sum)
    yield _line(f"{name}_count", point.attributes, point.count)


def _line(name: str, labels: Mapping[str, object] | None, value: float) -> str:
    pairs = ",".join(f'{key.replace(".", "_")}="{_escape_label(str(text))}"' for key, text in (labels or {}).items())
    return f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _escape_label(text: str) -> str:
    return _escape(text).replace('"', r"\"")
