"""What a node exports of its load."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from baton.capacity.cost import NodeProfile, prefill_seconds
from baton.capacity.reference_models import REFERENCE_MODELS
from baton.engine.events import EngineLoad
from baton.engine.kv_cache.offload import TierHits
from baton.internal.v1.node_pb2 import SystemSample
from baton.node.gauges import observe_load, observe_machine

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
    load = EngineLoad(1, 2, 2048, 25, 0.0, 7, TierHits(5, 5, 5), 3)
    busy = _values(reader)
    provider.shutdown()

    assert set(idle.values()) == {0.0}
    assert busy == {
        "baton.node.queue": prefill_seconds(_SHAPE, _PROFILE, 0, 2048),
        "baton.node.kv_used": 0.75,
        "baton.node.waiting": 1,
        "baton.node.running": 2,
        "baton.node.passes": 7,
        "baton.node.prefix_hits": 5,
        "baton.node.kv_files_dropped": 3,
    }


def test_a_machine_exports_what_its_sensors_measure_and_no_more() -> None:
    """Nothing before the first reading; an absent sensor has no value rather than 0."""
    sample: SystemSample | None = None
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    observe_machine(provider.get_meter("test"), "decode-0", lambda: sample)
    before = reader.get_metrics_data()
    sample = SystemSample(
        power_watts=42.0,
        ane_power_watts=3.0,
        gpu_usage=0.5,
        memory_byte_count=100,
        available_memory_byte_count=30,
        temperature_celsius=61,
    )
    after = _values(reader)
    provider.shutdown()

    assert before is None
    assert after == {
        "baton.node.power": 42.0,
        "baton.node.part_power": 3.0,
        "baton.node.temperature": 61.0,
        "baton.node.utilization": 0.5,
        "baton.node.memory_used": 70,
    }


def _values(reader: InMemoryMetricReader) -> dict[str, float]:
    data = reader.get_metrics_data()
    assert data is not None
    points = {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert all(point.attributes["baton.node.id"] == "decode-0" for each in points.values() for point in each)
    return {name: each[0].value for name, each in points.items()}
