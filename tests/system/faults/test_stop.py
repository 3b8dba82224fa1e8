"""Must show 6: a process that is stopped (SIGSTOP) is noticed within seconds, and does no harm when it goes on."""

from __future__ import annotations

import http.client
import signal
from collections.abc import Callable, Sequence

import grpc
import pytest

from baton.v1.generation_service_pb2 import GenerateRequest
from baton.v1.generation_service_pb2_grpc import GenerationServiceStub
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


AGREED_SECONDS = 2.0


@pytest.mark.parametrize("names", [("decode-0", "decode-1"), ("router",)], ids=["decode", "router"])
def test_health_ready_and_requests_agree(mock_cluster: Cluster, names: Sequence[str]) -> None:
    """Within two seconds, when what requests need stops, and when it goes on."""
    for number, is_good in ((signal.SIGSTOP, False), (signal.SIGCONT, True)):
        for name in names:
            mock_cluster.kill(name, number)

        _check_agreed(mock_cluster, is_good=is_good)


def _check_agreed(cluster: Cluster, *, is_good: bool) -> None:
    answers: Sequence[Callable[[], bool]] = (lambda: cluster.is_serving("gateway"), lambda: _is_ready(cluster))
    for is_told_good in answers:
        cluster.wait_until(lambda told=is_told_good: told() == is_good, "both tell the same", AGREED_SECONDS)
    assert _is_served(cluster) == is_good
    assert [answer() for answer in answers] == [is_good] * 2


def _is_ready(cluster: Cluster) -> bool:
    connection = http.client.HTTPConnection(*cluster.http_address, timeout=AGREED_SECONDS)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == http.client.OK
    finally:
        connection.close()


def _is_served(cluster: Cluster) -> bool:
    with grpc.insecure_channel(cluster.grpc_address) as channel:
        request = GenerateRequest(text="hello", sampling={"max_token_count": 2})
        try:
            return len(list(GenerationServiceStub(channel).Generate(request, timeout=AGREED_SECONDS))) > 0  # type: ignore[no-untyped-call]
        except grpc.RpcError:
            return False


def _check_going_on(cluster: Cluster, name: str, expected: Sequence[Outcome]) -> None:
    """Check that a node that goes on drops its old work, is used again, and that requests beside it are right."""
    pid = cluster.pid_of(name)
    cluster.kill(name, signal.SIGCONT)

    check_equal(begin(cluster, ASKS), expected)
    cluster.wait_ready()
    cluster.wait_idle(NOTICED_SECONDS)
    assert cluster.pid_of(name) == pid
