"""Must show 6: a process that is asked to end (SIGTERM) finishes or hands over what it does, and exits with 0."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from system.client import Outcome, open_grpc
from system.cluster import Cluster
from system.faults.scenario import (
    ASKS,
    NOTICED_SECONDS,
    begin,
    caught,
    check_begins_equal,
    check_equal,
    check_restart,
)


def test_streams_of_a_decode_node_go_on_elsewhere(mock_cluster: Cluster, expected: list[Outcome]) -> None:
    """None of their tokens is lost or doubled, and the node ends without waiting for them."""
    asks, log = [replace(ask, num_tokens=100) for ask in ASKS], mock_cluster.log_files["gateway"]
    while "stream_moves" not in log.read_text():  # streams may end before the node has told that it leaves
        mock_cluster.heal()
        streams, victim = caught(mock_cluster, "decode", lambda: begin(mock_cluster, asks))
        mock_cluster.kill(victim, signal.SIGTERM)
        later = begin(mock_cluster, ASKS)

        for stream, whole in zip(streams, expected, strict=True):
            assert not stream.outcome().error
            check_begins_equal(stream.outcome(), whole)
        check_equal(later, expected)
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
