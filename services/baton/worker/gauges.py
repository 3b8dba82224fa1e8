"""What a node exports of its load, by which pools are scaled."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from baton.capacity.cost import backlog_seconds
from baton.capacity.model_shape import ModelShape
from baton.capacity.profile import NodeProfile
from baton.engine.load import EngineLoad
from baton.telemetry import names


def observe_load(
    meter: Meter,
    node_id: str,
    load: Callable[[], EngineLoad],
    *,
    shape: ModelShape,
    profile: NodeProfile,
    num_blocks: int,
) -> None:
    """Export queue time and KV use whenever metrics are collected.

    Args:
        meter: Exports them.
        node_id: Labels them.
        load: Returns the load; called from the exporter's thread.
        shape: Size of the model.
        profile: Speed of the node.
        num_blocks: KV blocks in its pool, 1 or more.
    """

    def queue(_: CallbackOptions) -> Iterable[Observation]:
        now = load()
        seconds = backlog_seconds(shape, profile, now.num_pending_prompt_tokens, now.num_waiting)
        yield Observation(seconds, {names.NODE_ID: node_id})

    def kv_used(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(1 - load().num_available_blocks / num_blocks, {names.NODE_ID: node_id})

    for metric, callback in ((names.NODE_QUEUE, queue), (names.NODE_KV_USED, kv_used)):
        meter.create_observable_gauge(metric.name, [callback], unit=metric.unit, description=metric.description)
