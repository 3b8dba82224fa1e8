"""The metrics of a process in Prometheus's formats, collected when they are asked for.

Sources: https://prometheus.io/docs/instrumenting/exposition_formats (text format 0.0.4) and OpenMetrics 1.0.0, which
knows exemplars; names and units as OpenTelemetry's specification translates them for Prometheus.

The library, opentelemetry-exporter-prometheus, drops exemplars (0.66b2: its source does not name them), which lead from
a slow bucket to a trace; prometheus_client would write the text, but a family of its own would have to be made of each
metric for it, which is as much code as the lines. Once the exporter passes exemplars on, `Scrape` can be its reader.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from opentelemetry import metrics
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import Exemplar, MeterProvider, export
from opentelemetry.trace import format_trace_id

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MEDIA_TYPES = tuple(each.partition(";")[0] for each in (_TEXT, _OPEN_METRICS))
"""What a client can get, the default first."""

Exemplars: TypeAlias = dict[tuple[str, frozenset[tuple[str, Any]]], dict[int, Exemplar]]
"""The latest traced value of each bucket, by its index, of each series: a metric and its attributes."""

_UNITS = {"s": "_seconds", "By": "_bytes", "W": "_watts", "Cel": "_celsius"}
"""Suffix of a name by its UCUM unit; counted things and shares have none."""


class Scrape:
    """The metrics of one meter; every scraper sees all exemplars, each until a later one of its bucket replaces it."""

    def __init__(self, reader: export.InMemoryMetricReader) -> None:
        self._reader = reader
        self._exemplars: Exemplars = {}

    def text(self, accept: str = "") -> bytes:
        """Return all values as they are, in the format that a header `Accept` asks for."""
        data = self._reader.get_metrics_data()
        is_open_metrics = content_type(accept) == _OPEN_METRICS
        if data is None:
            text = b""
        else:
            self._keep_exemplars(data)
            text = render(data, self._exemplars if is_open_metrics else None)
        return text + b"# EOF\n" if is_open_metrics else text

    def _keep_exemplars(self, data: export.MetricsData) -> None:
        """Note what came since the last reading, after which the library has forgotten it, whoever read."""
        for metric in _metrics(data):
            for point in metric.data.data_points:
                if isinstance(point, export.HistogramDataPoint) and point.exemplars:
                    self._exemplars.setdefault(_series(metric.name, point), {}).update(
                        {bisect_left(point.explicit_bounds, exemplar.value): exemplar for exemplar in point.exemplars}
                    )


class ScrapedMeter(NamedTuple):
    """A meter, and what reads it."""

    meter: Meter
    scrape: Scrape


@contextmanager
def scraped_meter() -> Iterator[ScrapedMeter]:
    """Yield a meter that can be read here; what is exported by OTLP, if anything is, stays exported."""
    reader, provider = export.InMemoryMetricReader(), metrics.get_meter_provider()
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


def family_name(name: str, unit: str, *, is_gauge: bool = False) -> str:
    """Return what Prometheus calls a metric, without the suffixes of counters and histograms."""
    return name.replace(".", "_") + ("_ratio" if is_gauge and unit == "1" else _UNITS.get(unit, ""))


def content_type(accept: str) -> str:
    """Return the media type in which a client that sends this header `Accept` gets metrics."""
    return _OPEN_METRICS if "application/openmetrics-text" in accept else _TEXT


def render(data: export.MetricsData, exemplars: Exemplars | None = None) -> bytes:
    """Return metrics as text; with exemplars it is OpenMetrics, without its end."""
    lines = [line for metric in _metrics(data) for line in _metric_lines(metric, exemplars)]
    return "".join(f"{line}\n" for line in lines).encode()


def _metrics(data: export.MetricsData) -> list[export.Metric]:
    return [
        metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ]


def _series(name: str, point: export.HistogramDataPoint) -> tuple[str, frozenset[tuple[str, Any]]]:
    return name, frozenset((point.attributes or {}).items())


def _metric_lines(metric: export.Metric, exemplars: Exemplars | None) -> Iterator[str]:
    is_counter = isinstance(metric.data, export.Sum) and metric.data.is_monotonic
    is_gauge = isinstance(metric.data, export.Gauge)
    family = family_name(metric.name, metric.unit or "", is_gauge=is_gauge)
    name = family + "_total" if is_counter else family
    is_number = is_gauge or isinstance(metric.data, export.Sum)
    titled = name if exemplars is None else family  # OpenMetrics names the family, the older format the sample
    yield f"# HELP {titled} {_escape(metric.description or '')}"
    yield f"# TYPE {titled} {'counter' if is_counter else 'gauge' if is_number else 'histogram'}"
    for point in metric.data.data_points:
        if isinstance(point, export.NumberDataPoint):
            yield _line(name, point.attributes, point.value)
        elif isinstance(point, export.HistogramDataPoint):
            of_buckets = (exemplars or {}).get(_series(metric.name, point), {})
            yield from _histogram_lines(name, point, of_buckets)


def _histogram_lines(name: str, point: export.HistogramDataPoint, exemplars: Mapping[int, Exemplar]) -> Iterator[str]:
    count = 0
    bounds = [*point.explicit_bounds, math.inf]
    for index, (bound, bucket_count) in enumerate(zip(bounds, point.bucket_counts, strict=True)):
        count += bucket_count
        limit = "+Inf" if bound == math.inf else f"{bound:g}"
        line = _line(f"{name}_bucket", {**(point.attributes or {}), "le": limit}, count)
        yield line + _exemplar(exemplars[index]) if index in exemplars else line
    yield _line(f"{name}_sum", point.attributes, point.sum)
    yield _line(f"{name}_count", point.attributes, point.count)


def _exemplar(exemplar: Exemplar) -> str:
    """Return the trace of one of a bucket's values, behind its line; empty if it was not traced."""
    if not exemplar.trace_id:
        return ""
    trace_id = format_trace_id(exemplar.trace_id)
    return f' # {{trace_id="{trace_id}"}} {exemplar.value:g} {exemplar.time_unix_nano / 1e9:.3f}'


def _line(name: str, labels: Mapping[str, object] | None, value: float) -> str:
    texts = {key.replace(".", "_"): _escape(str(text)).replace('"', r"\"") for key, text in (labels or {}).items()}
    pairs = ",".join(f'{key}="{text}"' for key, text in texts.items())
    return f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
