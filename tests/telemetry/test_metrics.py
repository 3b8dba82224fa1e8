"""Counters and histograms."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint

from baton.telemetry import names
from baton.telemetry.metrics import MAX_LINK_LABELS, MAX_NODE_LABELS, Metrics


def _collect(reader: InMemoryMetricReader) -> dict[str, list[NumberDataPoint | HistogramDataPoint]]:
    data = reader.get_metrics_data()
    assert data is not None
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: list(metric.data.data_points) for metric in metrics}  # type: ignore[arg-type]


def _predict(metrics: Metrics, *, node_id: str = "", link: str = "") -> None:
    metrics.record(names.PREDICTION_RATIO, 1.0, {names.TERM: "step", names.NODE_ID: node_id, names.LINK: link})


def test_what_happened_is_counted_under_its_attributes() -> None:
    """Fallbacks keep their reasons apart, prompts their sides, and bytes add up."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = Metrics(provider.get_meter("test"))

    metrics.add(names.FALLBACKS, 1, {names.REASON: "UNAVAILABLE"})
    metrics.add(names.FALLBACKS, 1, {names.REASON: "KV_STREAM_BROKEN"})
    metrics.add(names.FALLBACKS, 1, {names.REASON: "UNAVAILABLE"})
    metrics.add(names.FAILURES, 1, {names.REASON: "NON_FINITE_LOGITS"})
    metrics.add(names.CACHED_PROMPT_TOKENS, 32, {names.SIDE: "decode"})
    metrics.add(names.KV_BYTES, 1000, {names.KV_TRANSPORT: "fast"})
    metrics.record(names.EXPOSED_TRANSFER, 0.25)
    metrics.add(names.KV_BYTES, 500, {names.KV_TRANSPORT: "fast"})
    metrics.record(names.EXPOSED_TRANSFER, 0.0)
    metrics.record(names.TIME_TO_FIRST_TOKEN, 0.3, {names.GEN_AI_REQUEST_MODEL: "m"})

    points = _collect(reader)
    fallbacks = {point.attributes["baton.reason"]: point.value for point in points["baton.fallbacks"]}  # type: ignore[index, union-attr]
    assert fallbacks == {"UNAVAILABLE": 2, "KV_STREAM_BROKEN": 1}
    failures = {point.attributes["baton.reason"]: point.value for point in points["baton.requests.failed"]}  # type: ignore[index, union-attr]
    assert failures == {"NON_FINITE_LOGITS": 1}
    assert points["baton.prompt_tokens.cached"][0].value == 32  # type: ignore[union-attr]
    assert points["baton.kv.received"][0].value == 1500  # type: ignore[union-attr]
    assert points["baton.kv.exposed"][0].count == 2  # type: ignore[union-attr]
    assert points["gen_ai.server.time_to_first_token"][0].sum == 0.3  # type: ignore[union-attr]
    provider.shutdown()


def test_without_a_provider_nothing_happens() -> None:
    """Metrics cost a no-op where they are off."""
    metrics = Metrics()

    metrics.add(names.PLACEMENTS, 1, {names.SIDE: "prefill"})
    metrics.add(names.PREEMPTIONS)
    metrics.record(names.REQUEST_DURATION, 1.0, {names.GEN_AI_REQUEST_MODEL: "m"})
    metrics.add_current(names.GATEWAY_ACTIVE_REQUESTS, 1)


def test_the_tokens_of_one_generation_in_sixteen_are_timed() -> None:
    """The first among them, so that a quiet service has values too."""
    metrics = Metrics()

    timed = [metrics.times_tokens() for _ in range(33)]

    assert [index for index, is_timed in enumerate(timed) if is_timed] == [0, 16, 32]


def test_nodes_that_come_and_go_do_not_add_series_for_ever() -> None:
    """After so many they share one; those that have their own keep it."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = Metrics(provider.get_meter("test"))
    for number in range(2 * MAX_NODE_LABELS):
        _predict(metrics, node_id=f"pod-{number}")
    _predict(metrics, node_id="pod-0")

    points = _collect(reader)["baton.placement.prediction_ratio"]
    counts = {point.attributes["baton.node.id"]: point.count for point in points}  # type: ignore[index, union-attr]
    assert len(counts) == MAX_NODE_LABELS + 1
    assert (counts["pod-0"], counts["pod-1"], counts["other"]) == (2, 1, MAX_NODE_LABELS)
    provider.shutdown()


def test_pods_that_come_after_months_of_others_share_the_series_of_their_workload() -> None:
    """Drift of a node that came late is still seen as that of its deployment, and the series stay bounded."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = Metrics(provider.get_meter("test"))
    letters = "bcdfghjklmnpqrstvwxz"
    for number in range(2 * MAX_NODE_LABELS):
        pod = f"decode-7d9f8c6b5-{letters[number // 20]}{letters[number % 20]}x2z"
        _predict(metrics, node_id=pod)
        _predict(metrics, link=f"mac-studio>{pod}")
        _predict(metrics, link=f"prefill-59c4-x>{pod}")
    _predict(metrics, node_id="mac-mini")

    points = _collect(reader)["baton.placement.prediction_ratio"]
    counts = {(point.attributes["baton.node.id"], point.attributes["baton.link"]): point.count for point in points}  # type: ignore[index, union-attr]
    assert len(counts) == MAX_NODE_LABELS + 2 + MAX_LINK_LABELS + 2
    assert counts["decode-*", ""] == MAX_NODE_LABELS
    assert counts["other", ""] == 1
    assert counts["", "mac-studio>decode-*"] == counts["", "prefill-59c4-x>decode-*"] == MAX_LINK_LABELS // 2
    provider.shutdown()
