"""What a node exports of its load."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from baton.capacity.cost import prefill_seconds
from baton.capacity.profile import NodeProfile
from baton.capacity.reference_models import REFERENCE_MODELS
from baton.engine.load import EngineLoad
from baton.worker.gauges import observe_load

_SHAPE = next(iter(REFERENCE_MODELS.values()))
_PROFILE = NodeProfile(1e12, 0.001, 1e12, 1e11, 0.001)


def test_queue_time_and_kv_use_follow_the_load() -> None:
    """An idle node exports zeros; one with a waiting prompt its seconds, one with held blocks their share."""
    load = EngineLoad(0, 0, 0, 100, 0.0, 0)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("test")
    observe_load(meter, "decode-0", lambda: load, shape=_SHAPE, profile=_PROFILE, num_blocks=100)
    idle = _values(reader)
    load = EngineLoad(1, 0, 2048, 25, 0.0, 0)
    busy = _values(reader)
    provider.shutdown()

    assert idle == {"baton.node.queue": 0.0, "baton.node.kv_used": 0.0}
    assert busy == {"baton.node.queue": prefill_seconds(_SHAPE, _PROFILE, 0, 2048), "baton.node.kv_used": 0.75}


def _values(reader: InMemoryMetricReader) -> dict[str, float]:
    data = reader.get_metrics_data()
    assert data is not None
    points = {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert all(dict(point.attributes) == {"baton.node.id": "decode-0"} for each in points.values() for point in each)
    return {name: each[0].value for name, each in points.items()}
