"""Must show 6: a process that is stopped (SIGSTOP) is noticed within seconds, and does no harm when it goes on."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import pytest

from system.client import Ask, Outcome, open_grpc
from system.cluster import Cluster
from system.faults.scenario import NOTICED_SECONDS, FaultFree, begin, busy_node, check_equal, uncached

STREAM_ASKS = tuple(Ask(tuple((11 * index + place) % 500 + 3 for place in range(60)), 50) for index in range(2))
"""More than a second long."""
LONG_ASK = Ask(tuple((3 * place) % 500 + 3 for place in range(2000)), 20)
"""Its prefill takes more than a second."""


@pytest.fixture(scope="module")
def fault_free() -> FaultFree:
    """Return what the mock cluster answers when nothing fails."""
    return FaultFree()


def test_a_prefill_node_that_stops_is_replaced_within_seconds(mock_cluster: Cluster, fault_free: FaultFree) -> None:
    """The prompt is computed on the decode node; what the stopped one sends later lands nowhere."""
    whole, *expected = [fault_free.outcome(mock_cluster, ask) for ask in (LONG_ASK, *STREAM_ASKS)]
    stream = open_grpc(mock_cluster, uncached(LONG_ASK))
    victim = busy_node(mock_cluster, "prefill")
    mock_cluster.kill(victim, signal.SIGSTOP)

    outcome = stream.outcome(NOTICED_SECONDS)
    assert outcome.token_ids == whole.token_ids
    assert outcome.placement.fallback_reason
    _check_going_on(mock_cluster, victim, expected)


def test_streams_leave_a_decode_node_that_stops(mock_cluster: Cluster, fault_free: FaultFree) -> None:
    """They go on elsewhere within seconds, and the stopped node's later tokens reach nobody."""
    expected = [fault_free.outcome(mock_cluster, ask) for ask in STREAM_ASKS]
    streams = begin(mock_cluster, STREAM_ASKS)
    victim = busy_node(mock_cluster, "decode")
    mock_cluster.kill(victim, signal.SIGSTOP)

    check_equal(streams, expected)
    for stream in streams:
        assert stream.outcome().seconds < NOTICED_SECONDS
    _check_going_on(mock_cluster, victim, expected)


def _check_going_on(cluster: Cluster, name: str, expected: Sequence[Outcome]) -> None:
    """Check that a node that goes on drops its old work, is used again, and that requests beside it are right."""
    pid = cluster.pid_of(name)
    cluster.kill(name, signal.SIGCONT)

    check_equal(begin(cluster, STREAM_ASKS), expected)
    cluster.wait_ready()
    cluster.wait_idle(NOTICED_SECONDS)
    assert cluster.pid_of(name) == pid
