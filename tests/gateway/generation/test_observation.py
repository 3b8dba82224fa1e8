"""What metrics learn of a generation's tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from baton.gateway.access.admission import RequestContext
from baton.gateway.generation.observation import GenerationObserver, Journal
from baton.gateway.generation.requests import GenerationState, PreparedPrompt
from baton.telemetry import names
from baton.telemetry.metrics import Metrics
from baton.v1.generation_pb2 import SamplingParameters


def test_gaps_between_outputs_are_recorded_from_the_first_token_on() -> None:
    """The time to the first one is another figure."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    times = iter([1.0, 5.0, 5.25, 5.75])
    prompt = cast(
        PreparedPrompt, SimpleNamespace(arrival_seconds=1.0, token_ids=[1], request=SimpleNamespace(model="m"))
    )
    context, journal = RequestContext(), Journal(lambda: next(times))
    generation = GenerationState("g", prompt, SamplingParameters(), begun_seconds=1.0)
    metrics = Metrics(provider.get_meter("test"))
    observation = GenerationObserver(generation, context, metrics, journal, is_first_choice=True)

    assert observation.times_tokens
    observation.note_first_token()
    observation.note_tokens()
    observation.note_tokens()

    point = _points(reader)[names.INTER_TOKEN_LATENCY.name]
    assert (point.count, point.sum, point.max) == (2, 0.75, 0.5)
    assert _points(reader)[names.TIME_TO_FIRST_TOKEN.name].sum == 4.0
    provider.shutdown()


def _points(reader: InMemoryMetricReader) -> dict[str, HistogramDataPoint]:
    data: Any = reader.get_metrics_data()
    metrics = data.resource_metrics[0].scope_metrics[0].metrics
    return {metric.name: metric.data.data_points[0] for metric in metrics}
