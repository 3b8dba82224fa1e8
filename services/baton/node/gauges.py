"""What a node exports of its load, by which pools are scaled, and of its machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from opentelemetry.metrics import Meter, Observation

from baton.capacity.cost import ModelShape, NodeProfile, backlog_seconds
from baton.engine.events import EngineLoad
from baton.internal.v1.node_pb2 import SystemSample
from baton.telemetry import names

_USES = {"gpu": "gpu_usage", "performance_cpu": "performance_cpu_usage", "efficiency_cpu": "efficiency_cpu_usage"}
_POWERS = {"gpu": "gpu_power_watts", "ane": "ane_power_watts", "cpu": "cpu_power_watts"}


def observe_load(
    meter: Meter,
    node_id: str,
    load: Callable[[], EngineLoad],
    *,
    shape: ModelShape,
    profile: NodeProfile,
    num_blocks: int,
) -> None:
    """Export queue, batch and KV use whenever metrics are collected. `load` is called from the exporter's thread."""
    values: Mapping[names.MetricName, Callable[[EngineLoad], float]] = {
        names.NODE_QUEUE: lambda now: backlog_seconds(shape, profile, now.num_pending_prompt_tokens, now.num_waiting),
        names.NODE_KV_USED: lambda now: 1 - now.num_available_blocks / num_blocks,
        names.NODE_RUNNING: lambda now: now.num_running,
        names.NODE_WAITING: lambda now: now.num_waiting,
    }
    labels = {names.NODE_ID: node_id}
    gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
    for metric, value in values.items():
        _export(gauge, metric, partial(lambda value: [Observation(value(load()), labels)], value))
    _export(counter, names.NODE_PASSES, lambda: [Observation(load().num_steps, labels)])
    _export(counter, names.NODE_DROPPED_FILES, lambda: [Observation(load().num_dropped_files, labels)])
    _export(
        counter,
        names.NODE_PREFIX_HITS,
        lambda: [Observation(count, labels | {names.TIER: tier}) for tier, count in load().tier_hits._asdict().items()],
    )


def observe_machine(meter: Meter, node_id: str, latest: Callable[[], SystemSample | None]) -> None:
    """Export what sensors measure as metrics are collected; the exporter's thread calls `latest`."""
    labels = {names.NODE_ID: node_id}

    def field(name: str) -> Iterable[Observation]:
        sample = latest()
        if sample is not None and sample.HasField(name):
            yield Observation(getattr(sample, name), labels)

    def parts(fields: Mapping[str, str]) -> Iterable[Observation]:
        for part, name in fields.items():
            yield from (Observation(seen.value, labels | {names.PART: part}) for seen in field(name))

    def memory_used() -> Iterable[Observation]:
        sample = latest()
        if sample is not None and sample.HasField("available_memory_byte_count"):
            yield Observation(sample.memory_byte_count - sample.available_memory_byte_count, labels)

    gauge = meter.create_observable_gauge
    _export(gauge, names.NODE_POWER, lambda: field("power_watts"))
    _export(gauge, names.NODE_PART_POWER, lambda: parts(_POWERS))
    _export(gauge, names.NODE_TEMPERATURE, lambda: field("temperature_celsius"))
    _export(gauge, names.NODE_UTILIZATION, lambda: parts(_USES))
    _export(gauge, names.NODE_MEMORY_USED, memory_used)


def _export(create: Callable[..., object], metric: names.MetricName, read: Callable[[], Iterable[Observation]]) -> None:
    create(metric.name, [lambda _: read()], unit=metric.unit, description=metric.description)
