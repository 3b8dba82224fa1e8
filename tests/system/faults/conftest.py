"""The clusters in which things are killed, and their logs where a test fails."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

import pytest

from checkpoints import checkpoint
from system.client import Outcome
from system.cluster import Cluster
from system.faults.scenario import ASKS, FaultFree

SLOW_MODEL: Mapping[str, str] = {"mock_shape": "llama-3.1-8b", "mock_hardware": "m3-ultra", "dtype": "bfloat16"}
"""A token every 26 ms, a prompt token every 0.7 ms: slow enough to kill something in between."""


@pytest.fixture(scope="session")
def _mock_cluster() -> Iterator[Cluster]:
    settings = {
        "prefill": SLOW_MODEL,
        "decode": SLOW_MODEL,  # decode-0 takes KV by the fast path
        "decode-1": {**SLOW_MODEL, "kv_transport": "grpc"},
        "router": {"prefill_policy": "remote", "drain_seconds": "1"},
        "gateway": {"router_timeout_seconds": "4", "drain_seconds": "60"},  # streams may take long on a busy machine
    }
    with Cluster(checkpoint("llama"), prefill=("mock",) * 2, decode=("mock",) * 2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def mock_cluster(_mock_cluster: Cluster) -> Cluster:
    """Return two prefill and two decode nodes that stand for slow hardware, all healthy and idle."""
    _mock_cluster.heal()
    return _mock_cluster


@pytest.fixture(scope="session")
def fault_free() -> FaultFree:
    """Return what the mock cluster answers when nothing fails."""
    return FaultFree()


@pytest.fixture
def expected(mock_cluster: Cluster, fault_free: FaultFree) -> list[Outcome]:
    """Return the right outcomes of ASKS."""
    return [fault_free.outcome(mock_cluster, ask) for ask in ASKS]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Show the logs of a failed test's cluster."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Cluster):
                report.sections += [(f"log of {name}", tail) for name, tail in value.log_tails().items()]
    return report
