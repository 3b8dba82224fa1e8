"""Metrics with OpenTelemetry: counters and histograms of names.py; off unless an OTLP endpoint is configured."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from itertools import count
from typing import Literal

from opentelemetry import metrics
from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, Meter, UpDownCounter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader

from baton.telemetry import names
from baton.telemetry.tracing import has_endpoint, service_resource

_TIMED_EVERY = 16
"""One generation of so many has the gaps between its tokens recorded."""
_MAX_TENANTS = 64
"""Tenants with a label of their own: every one is a time series."""
_MAX_FIELDS = 64
"""Names of fields likewise."""
_FIELD = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

MAX_NODE_LABELS = 128
"""Nodes with series of their own in the metrics of a router."""
MAX_LINK_LABELS = 256
"""Links likewise."""
OTHER = "other"
"""Stands for those that came later and are no pods of a workload."""
_POD_SUFFIX = re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{6,10}-[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""What Kubernetes gives the pods of a Deployment behind its name: the template's hash, and letters of each pod."""

Transport = Literal["grpc", "fast", "shared"]


def configure_metrics(service_name: str, *, is_scraped: bool = False) -> None:
    """Export the metrics of this process by OTLP over gRPC, if an endpoint is set.

    OTEL_SERVICE_NAME wins over `service_name`; `is_scraped`: they are read here besides, also without an endpoint.
    """
    readers: list[MetricReader] = []
    if has_endpoint(_ENDPOINTS) and os.environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    if readers or is_scraped:
        metrics.set_meter_provider(MeterProvider(readers, resource=service_resource(service_name)))


def shutdown_metrics() -> None:
    """Send the last values and stop; does nothing if metrics are off."""
    provider = metrics.get_meter_provider()
    if isinstance(provider, MeterProvider):
        provider.shutdown()


class Metrics:
    """The instruments of a process, each made at its first use. Without an endpoint every call is a no-op.

    Of attributes whose values are chosen elsewhere (tenants, nodes, links, fields) only so many become series.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        self._meter = meter or metrics.get_meter("baton")
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._current: dict[str, UpDownCounter] = {}
        self._labels = {
            names.TENANT: BoundedLabels(_MAX_TENANTS),
            names.NODE_ID: BoundedLabels(MAX_NODE_LABELS),
            names.LINK: BoundedLabels(MAX_LINK_LABELS),
            names.FIELD: BoundedLabels(_MAX_FIELDS, _FIELD),
        }
        self._num_generations = count()

    def add(self, metric: names.MetricName, value: float = 1, attributes: Mapping[str, str] | None = None) -> None:
        """Add to a counter."""
        if metric.name not in self._counters:
            self._counters[metric.name] = self._meter.create_counter(*metric[:3])
        self._counters[metric.name].add(value, self._bounded(attributes))

    def record(
        self,
        metric: names.MetricName,
        value: float,
        attributes: Mapping[str, str] | None = None,
        context: Context | None = None,
    ) -> None:
        """Add a value to a histogram; it is an example of the span in a context, or of the current one."""
        if metric.name not in self._histograms:
            made = self._meter.create_histogram(*metric[:3], explicit_bucket_boundaries_advisory=list(metric.buckets))
            self._histograms[metric.name] = made
        self._histograms[metric.name].record(value, self._bounded(attributes), context)

    def add_current(self, metric: names.MetricName, change: int, attributes: Mapping[str, str] | None = None) -> None:
        """Add to a number of what is there now: what comes is above 0, what goes below."""
        if metric.name not in self._current:
            self._current[metric.name] = self._meter.create_up_down_counter(*metric[:3])
        self._current[metric.name].add(change, self._bounded(attributes))

    def times_tokens(self) -> bool:
        """Return whether the gaps of the next generation are to be recorded: a record per token of all is too much."""
        return next(self._num_generations) % _TIMED_EVERY == 0

    def _bounded(self, attributes: Mapping[str, str] | None) -> Mapping[str, str] | None:
        if attributes is None or self._labels.keys().isdisjoint(attributes):
            return attributes
        return {
            name: self._labels[name].admit(value) if name in self._labels else value
            for name, value in attributes.items()
        }


class BoundedLabels:
    """Values of an attribute that become series of their own.

    An exporter keeps a series as long as its process runs, and nodes come and go. What comes after so many shares the
    series of its workload, for the pods of one are alike: "decode-*" for all pods of the deployment decode; and what
    is no pod, or comes after as many workloads, is "other".
    """

    def __init__(self, max_values: int, pattern: re.Pattern[str] | None = None) -> None:
        self._max_values = max_values
        self._pattern = pattern
        self._values: set[str] = {""}
        self._workloads: set[str] = set()

    def admit(self, value: str) -> str:
        """Return a value, or what stands for it if there are too many or it is not written as they are; never of ""."""
        if self._pattern is not None and not self._pattern.fullmatch(value):
            return OTHER
        if value not in self._values and len(self._values) <= self._max_values:
            self._values.add(value)
        return value if value in self._values else self._shared(value)

    def _shared(self, value: str) -> str:
        workload = ">".join(_POD_SUFFIX.sub("-*", node_id) for node_id in value.split(">"))
        if workload != value and len(self._workloads) < self._max_values:
            self._workloads.add(workload)
        return workload if workload in self._workloads else OTHER
