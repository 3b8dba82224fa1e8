"""Names of spans, events, attributes and metrics."""

from __future__ import annotations

from google.protobuf import descriptor_pool

from baton.internal.v1 import (
    agent_service_pb2,
    cache_index_service_pb2,
    decode_service_pb2,
    prefill_service_pb2,
    router_service_pb2,
    worker_service_pb2,
)
from baton.telemetry import names

_SERVICES = (
    agent_service_pb2,
    cache_index_service_pb2,
    decode_service_pb2,
    prefill_service_pb2,
    router_service_pb2,
    worker_service_pb2,
)


def test_no_two_metrics_share_a_name() -> None:
    """A dashboard never mixes two meanings."""
    metrics = [value.name for value in vars(names).values() if isinstance(value, names.MetricName)]

    assert len(metrics) == len(set(metrics)) > 5


def test_background_methods_exist() -> None:
    """A renamed method would be traced every second."""
    pool = descriptor_pool.Default()
    for module in _SERVICES:
        assert module.DESCRIPTOR.name

    for path in names.BACKGROUND_METHODS:
        service, _, method = path.removeprefix("/").partition("/")
        assert method in pool.FindServiceByName(service).methods_by_name
