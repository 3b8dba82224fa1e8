"""Must show 6: a process that is stopped (SIGSTOP) is noticed within seconds, and does no harm when it goes on."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from system.client import Outcome
from system.cluster import Cluster
from system.faults.scenario import ASKS, LONG_ASK, NOTICED_SECONDS, FaultFree, begin, caught, check_equal, struck


def test_a_prefill_node_that_stops_is_replaced_within_seconds(
    mock_cluster: Cluster, fault_free: FaultFree, expected: list[Outcome]
) -> None:
    """The prompt is computed on the decode node; what the stopped one sends later lands nowhere."""
    whole = fault_free.outcome(mock_cluster, LONG_ASK)
    outcome, victim = struck(
        mock_cluster, "prefill", signal.SIGSTOP, lambda outcome, _: outcome.placement.fallback_reason
    )

    assert outcome.token_ids == whole.token_ids
    assert outcome.placement.fallback_reason
    _check_going_on(mock_cluster, victim, expected)


def test_streams_leave_a_decode_node_that_stops(mock_cluster: Cluster, expected: list[Outcome]) -> None:
    """They go on elsewhere within seconds, and the stopped node's later tokens reach nobody."""
    streams, victim = caught(mock_cluster, "decode", lambda: begin(mock_cluster, ASKS))
    mock_cluster.kill(victim, signal.SIGSTOP)

    check_equal(streams, expected)
    for stream in streams:
        assert stream.outcome().seconds < NOTICED_SECONDS
    _check_going_on(mock_cluster, victim, expected)


def _check_going_on(cluster: Cluster, name: str, expected: Sequence[Outcome]) -> None:
    """Check that a node that goes on drops its old work, is used again, and that requests beside it are right."""
    pid = cluster.pid_of(name)
    cluster.kill(name, signal.SIGCONT)

    check_equal(begin(cluster, ASKS), expected)
    cluster.wait_ready()
    cluster.wait_idle(NOTICED_SECONDS)
    assert cluster.pid_of(name) == pid
