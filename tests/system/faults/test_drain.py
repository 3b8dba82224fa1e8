"""Must show 6: a process that is asked to end (SIGTERM) finishes what it does, takes nothing new, and exits with 0."""

from __future__ import annotations

import signal

import pytest

from system.client import Outcome, open_grpc
from system.cluster import Cluster
from system.faults.scenario import ASKS, NOTICED_SECONDS, begin, caught, check_equal, check_restart


def test_a_decode_node_finishes_its_streams_while_new_ones_go_elsewhere(
    mock_cluster: Cluster, expected: list[Outcome]
) -> None:
    """A draining node is no candidate, and nothing that it has is moved."""
    (stream,), victim = caught(mock_cluster, "decode", lambda: begin(mock_cluster, ASKS[:: len(ASKS)]))
    mock_cluster.kill(victim, signal.SIGTERM)
    mock_cluster.wait_until(lambda: _takes_nothing_new(mock_cluster, victim), f"{victim} drains", NOTICED_SECONDS)
    later = begin(mock_cluster, ASKS)

    check_equal([stream], expected[:1])
    assert stream.outcome().placement.decode_node_id == victim
    check_equal(later, expected)
    assert later[0].outcome().placement.decode_node_id != victim
    assert mock_cluster.processes[victim].wait(NOTICED_SECONDS) == 0
    check_restart(mock_cluster, victim, ASKS, expected)


@pytest.mark.parametrize("name", ["prefill-0", "router", "cache-index"])
def test_nobody_notices_the_end_of(mock_cluster: Cluster, expected: list[Outcome], name: str) -> None:
    """Streams go on, the process exits with 0, and the system serves again after its restart."""
    streams = begin(mock_cluster, ASKS)
    mock_cluster.kill(name, signal.SIGTERM)

    check_equal(streams, expected)
    assert mock_cluster.processes[name].wait(NOTICED_SECONDS) == 0
    check_restart(mock_cluster, name, ASKS, expected)


def test_a_gateway_finishes_its_streams_and_takes_no_new_ones(mock_cluster: Cluster, expected: list[Outcome]) -> None:
    """Both APIs drain; a new client is told at once."""
    streams = begin(mock_cluster, ASKS)
    mock_cluster.kill("gateway", signal.SIGTERM)
    mock_cluster.wait_until(lambda: not mock_cluster.is_serving("gateway"), "the gateway drains", NOTICED_SECONDS)

    assert "UNAVAILABLE" in open_grpc(mock_cluster, ASKS[0]).outcome(NOTICED_SECONDS).error
    check_equal(streams, expected)
    assert mock_cluster.processes["gateway"].wait(NOTICED_SECONDS) == 0
    check_restart(mock_cluster, "gateway", ASKS, expected)


def _takes_nothing_new(cluster: Cluster, name: str) -> bool:
    state = cluster.nodes().get(name)
    return state is None or state.load.is_draining
