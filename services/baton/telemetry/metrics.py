"""Metrics with OpenTelemetry: counters and histograms of names.py; off unless an OTLP endpoint is configured."""

from __future__ import annotations

import os
import re
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

Side = Literal["prefill", "decode"]
Transport = Literal["grpc", "fast", "shared"]


def configure_metrics(service_name: str, *, is_scraped: bool = False) -> None:
    """Export the metrics of this process by OTLP over gRPC, if an endpoint is set.

    Args:
        service_name: `service.name` of the resource, unless OTEL_SERVICE_NAME says otherwise.
        is_scraped: Whether they are read here besides, also without an endpoint (prometheus.py).
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
    """The instruments of a process. Without an endpoint every call is a no-op of the OpenTelemetry API."""

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or metrics.get_meter("baton")
        self._placements = _counter(meter, names.PLACEMENTS)
        self._refusals = _counter(meter, names.REFUSALS)
        self._tenant_labels = BoundedLabels(_MAX_TENANTS)
        self._degraded = _counter(meter, names.DEGRADED)
        self._margin = _histogram(meter, names.MARGIN)
        self._prediction_ratio = _histogram(meter, names.PREDICTION_RATIO)
        self._regret = _histogram(meter, names.REGRET)
        self._regret_share = _histogram(meter, names.REGRET_SHARE)
        self._node_labels = BoundedLabels(MAX_NODE_LABELS)
        self._link_labels = BoundedLabels(MAX_LINK_LABELS)
        self._fallbacks = _counter(meter, names.FALLBACKS)
        self._kv_breaks = _counter(meter, names.KV_BREAKS)
        self._pulls = _counter(meter, names.PULLS)
        self._pulled_tokens = _counter(meter, names.PULLED_PROMPT_TOKENS)
        self._pulled_bytes = _counter(meter, names.PULLED_BYTES)
        self._failures = _counter(meter, names.FAILURES)
        self._preemptions = _counter(meter, names.PREEMPTIONS)
        self._failed_lookups = _counter(meter, names.FAILED_LOOKUPS)
        self._retries = _counter(meter, names.RETRIES)
        self._cached_tokens = _counter(meter, names.CACHED_PROMPT_TOKENS)
        self._computed_tokens = _counter(meter, names.COMPUTED_PROMPT_TOKENS)
        self._shared_tokens = _counter(meter, names.SHARED_PROMPT_TOKENS)
        self._kv_bytes = _counter(meter, names.KV_BYTES)
        self._fast_path_fallbacks = _counter(meter, names.FAST_PATH_FALLBACKS)
        self._time_to_first_token = _histogram(meter, names.TIME_TO_FIRST_TOKEN)
        self._time_per_output_token = _histogram(meter, names.TIME_PER_OUTPUT_TOKEN)
        self._inter_token_latency = _histogram(meter, names.INTER_TOKEN_LATENCY)
        self._num_generations = count()
        self._request_duration = _histogram(meter, names.REQUEST_DURATION)
        self._transfer = _histogram(meter, names.KV_TRANSFER)
        self._exposed = _histogram(meter, names.EXPOSED_TRANSFER)
        self._gateway_duration = _histogram(meter, names.GATEWAY_REQUEST_DURATION)
        self._gateway_active = _up_down_counter(meter, names.GATEWAY_ACTIVE_REQUESTS)
        self._ignored_fields = _counter(meter, names.GATEWAY_IGNORED_FIELDS)
        self._field_labels = BoundedLabels(_MAX_FIELDS)
        self._gateway_prompt_tokens = _counter(meter, names.GATEWAY_PROMPT_TOKENS)
        self._gateway_output_tokens = _counter(meter, names.GATEWAY_OUTPUT_TOKENS)

    def add_placement(self, side: Side) -> None:
        """Count a decision of the router, by where the prompt is computed."""
        self._placements.add(1, {names.SIDE: side})

    def add_refusal(self, reason: str, tenant: str) -> None:
        """Count a request that the router refused; a label of its own have the first tenants only."""
        self._refusals.add(1, {names.REASON: reason, names.TENANT: self._tenant_labels.admit(tenant)})

    def add_degraded(self) -> None:
        """Count a request that the router placed with less output than it asked for."""
        self._degraded.add(1)

    def record_margin(self, term: str, factor: float) -> None:
        """Record what predictions of a term are multiplied by from now on."""
        self._margin.record(factor, {names.TERM: term})

    def record_prediction(self, term: str, ratio: float, *, node_id: str = "", link: str = "") -> None:
        """Record measured / estimated of a term of a placement, with the node or the link that the term is of."""
        self._prediction_ratio.record(ratio, {names.TERM: term, **self._where(node_id, link)})

    def record_regret(self, seconds: float, share: float, *, node_id: str, link: str) -> None:
        """Record by how much a request took longer than its next best placement was expected to.

        Args:
            seconds: The time, 0 or more.
            share: The same by all the time that the request took.
            node_id: Node that decoded.
            link: Way of its KV; empty: none.
        """
        where = self._where(node_id, link)
        self._regret.record(seconds, where)
        self._regret_share.record(share, where)

    def _where(self, node_id: str, link: str) -> dict[str, str]:
        return {names.NODE_ID: self._node_labels.admit(node_id), names.LINK: self._link_labels.admit(link)}

    def add_fallback(self, reason: str) -> None:
        """Count a remote prefill that was given up."""
        self._fallbacks.add(1, {names.REASON: reason})

    def add_kv_break(self, reason: str, recovery: str) -> None:
        """Count a KV stream that broke, by its cause and what took over."""
        self._kv_breaks.add(1, {names.REASON: reason, names.RECOVERY: recovery})

    def add_pull(self, outcome: str, *, num_tokens: int, num_bytes: int, transport: Transport) -> None:
        """Count a prefix asked of another node.

        Args:
            outcome: What came of it.
            num_tokens: Prompt tokens that did come.
            num_bytes: Payload, also of what was of no use.
            transport: What carried it.
        """
        self._pulls.add(1, {names.REASON: outcome})
        self._pulled_tokens.add(num_tokens)
        self._pulled_bytes.add(num_bytes, {names.KV_TRANSPORT: transport})

    def add_failure(self, reason: str) -> None:
        """Count a request that the engine of a decode node failed."""
        self._failures.add(1, {names.REASON: reason})

    def add_preemption(self) -> None:
        """Count a request that left its batch for want of memory."""
        self._preemptions.add(1)

    def add_failed_lookup(self, reason: str) -> None:
        """Count a placement for which the cache index did not answer, so that no prefix was expected anywhere."""
        self._failed_lookups.add(1, {names.REASON: reason})

    def add_retry(self, reason: str) -> None:
        """Count a further attempt at a request."""
        self._retries.add(1, {names.REASON: reason})

    def add_prompt(self, side: Side, *, num_cached_tokens: int, num_computed_tokens: int) -> None:
        """Count the tokens of a prompt on one side: those from its prefix cache and those that it computed."""
        self._cached_tokens.add(num_cached_tokens, {names.SIDE: side})
        self._computed_tokens.add(num_computed_tokens, {names.SIDE: side})

    def add_fast_path_fallback(self, reason: str) -> None:
        """Count a KV stream for which the fast path could not be used."""
        self._fast_path_fallbacks.add(1, {names.REASON: reason})

    def add_shared_prompt(self, num_tokens: int) -> None:
        """Count the tokens of a prompt that another request computed in the same pass."""
        if num_tokens:
            self._shared_tokens.add(num_tokens)

    def add_kv_transfer(
        self, num_bytes: int, transport: Transport, *, transfer_seconds: float, exposed_seconds: float
    ) -> None:
        """Count a KV stream that a decode node received.

        Args:
            num_bytes: Payload.
            transport: What carried it.
            transfer_seconds: Time in which frames were on their way.
            exposed_seconds: Part of it that computation did not hide.
        """
        self._kv_bytes.add(num_bytes, {names.KV_TRANSPORT: transport})
        self._transfer.record(transfer_seconds)
        self._exposed.record(exposed_seconds)

    def record_time_to_first_token(self, seconds: float, model: str, context: Context | None = None) -> None:
        """Record the time from a request's arrival to its first token.

        Args:
            seconds: The time.
            model: Served name of the model.
            context: Holds the span of the request, of which the value is an example; None: the current one.
        """
        self._time_to_first_token.record(seconds, {names.GEN_AI_REQUEST_MODEL: model}, context)

    def times_tokens(self) -> bool:
        """Return whether the gaps of the next generation are to be recorded: a record per token of all is too much."""
        return next(self._num_generations) % _TIMED_EVERY == 0

    def record_inter_token_latency(self, seconds: float, model: str, context: Context | None = None) -> None:
        """Record the time between two outputs that follow each other."""
        self._inter_token_latency.record(seconds, {names.GEN_AI_REQUEST_MODEL: model}, context)

    def record_end(
        self, duration_seconds: float, seconds_per_token: float | None, model: str, context: Context | None = None
    ) -> None:
        """Record the end of an answer.

        Args:
            duration_seconds: From the request's arrival.
            seconds_per_token: Mean over the tokens after the first; None if there was one token at most.
            model: Served name of the model.
            context: Holds the span of the request; None: the current one.
        """
        self._request_duration.record(duration_seconds, {names.GEN_AI_REQUEST_MODEL: model}, context)
        if seconds_per_token is not None:
            self._time_per_output_token.record(seconds_per_token, {names.GEN_AI_REQUEST_MODEL: model}, context)

    def add_active_requests(self, change: int) -> None:
        """Count a request of the gateway as begun (1) or ended (-1)."""
        self._gateway_active.add(change)

    def record_request(self, seconds: float, route: str, status: str) -> None:
        """Record the end of a request of the gateway, of any kind and with any outcome."""
        self._gateway_duration.record(seconds, {names.HTTP_ROUTE: route, names.STATUS: status})

    def add_ignored_field(self, name: str) -> None:
        """Count a field of a request that was left out; clients choose the names, the first have labels."""
        label = self._field_labels.admit(name) if _FIELD.fullmatch(name) else OTHER
        self._ignored_fields.add(1, {names.FIELD: label})

    def add_tokens(self, *, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """Count the tokens of a generation that has ended, finished or not."""
        self._gateway_prompt_tokens.add(num_prompt_tokens)
        self._gateway_output_tokens.add(num_output_tokens)


class BoundedLabels:
    """Values of an attribute that become series of their own.

    An exporter keeps a series as long as its process runs, and nodes come and go. What comes after so many shares the
    series of its workload, for the pods of one are alike: "decode-*" for all pods of the deployment decode; and what
    is no pod, or comes after as many workloads, is "other".
    """

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._values: set[str] = {""}
        self._workloads: set[str] = set()

    def admit(self, value: str) -> str:
        """Return a value, or what stands for it if there are too many; the empty one is always admitted."""
        if value not in self._values and len(self._values) <= self._max_values:
            self._values.add(value)
        return value if value in self._values else self._shared(value)

    def _shared(self, value: str) -> str:
        workload = ">".join(_POD_SUFFIX.sub("-*", node_id) for node_id in value.split(">"))
        if workload != value and len(self._workloads) < self._max_values:
            self._workloads.add(workload)
        return workload if workload in self._workloads else OTHER


def _up_down_counter(meter: Meter, metric: names.MetricName) -> UpDownCounter:
    return meter.create_up_down_counter(metric.name, unit=metric.unit, description=metric.description)


def _counter(meter: Meter, metric: names.MetricName) -> Counter:
    return meter.create_counter(metric.name, unit=metric.unit, description=metric.description)


def _histogram(meter: Meter, metric: names.MetricName) -> Histogram:
    return meter.create_histogram(
        metric.name,
        unit=metric.unit,
        description=metric.description,
        explicit_bucket_boundaries_advisory=list(metric.buckets),
    )
