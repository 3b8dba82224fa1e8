"""Must show 6: a process killed during streams costs a clear error or nothing, and comes back without the others."""

from __future__ import annotations

import signal

from system.client import Outcome, open_grpc, open_rest
from system.cluster import Cluster
from system.faults.scenario import (
    ASKS,
    LASTING_ASKS,
    LONG_ASK,
    NOTICED_SECONDS,
    FaultFree,
    begin,
    caught,
    check_begins_equal,
    check_equal,
    check_restart,
    holders_of,
    only_one_of_each,
    struck,
    uncached,
)

PATIENT = {"router_timeout_seconds": "50"}
"""For a gateway that is to outwait the start of a process, which a busy machine may take long for."""


def test_streams_do_not_notice_the_death_of_the_router(mock_cluster: Cluster, expected: list[Outcome]) -> None:
    """Tokens do not pass through the router; a request that needs it meanwhile gets an error that names it."""
    streams = begin(mock_cluster, ASKS)
    mock_cluster.kill("router")

    refused = open_rest(mock_cluster, ASKS[0])
    check_equal(streams, expected)
    assert "router_unavailable" in refused.outcome(NOTICED_SECONDS).error
    check_restart(mock_cluster, "router", ASKS, expected)


def test_requests_wait_for_a_router_that_starts_again(mock_cluster: Cluster, expected: list[Outcome]) -> None:
    """Neither its absence nor that it knows no node at first is an error, if it takes seconds only."""
    with mock_cluster.changed("gateway", **PATIENT):
        mock_cluster.kill("router")
        mock_cluster.start("router")

        check_equal(begin(mock_cluster, ASKS), expected)


def test_a_restarted_router_learns_everything_again_and_breaks_no_kv_stream(
    mock_cluster: Cluster, fault_free: FaultFree
) -> None:
    """Nodes come back one by one with their links; a prefill that runs meanwhile is not given up."""
    links = {(f"prefill-{sender}", f"decode-{receiver}") for sender in range(2) for receiver in range(2)}
    whole = fault_free.outcome(mock_cluster, LONG_ASK)
    (stream,), _ = caught(mock_cluster, "prefill", lambda: [open_grpc(mock_cluster, uncached(LONG_ASK))])
    mock_cluster.restart("router")

    assert stream.outcome().token_ids == whole.token_ids
    assert not stream.outcome().placement.fallback_reason
    mock_cluster.wait_until(lambda: links <= _links(mock_cluster), "all links are known", NOTICED_SECONDS)


def test_streams_do_not_notice_the_death_of_the_cache_index(mock_cluster: Cluster, expected: list[Outcome]) -> None:
    """Without it no prefix is expected anywhere; nothing else changes, and it is told everything again."""
    holders = holders_of(mock_cluster, ASKS[-1])
    streams = begin(mock_cluster, ASKS)
    mock_cluster.kill("cache-index")

    check_equal(streams, expected)
    check_equal(begin(mock_cluster, ASKS), expected)
    check_restart(mock_cluster, "cache-index", ASKS, expected)
    mock_cluster.wait_until(
        lambda: holders <= holders_of(mock_cluster, ASKS[-1]), "the cache index knows all blocks again", NOTICED_SECONDS
    )


def test_a_prompt_is_computed_elsewhere_if_its_prefill_node_dies(
    mock_cluster: Cluster, expected: list[Outcome], fault_free: FaultFree
) -> None:
    """The decode node computes the prompt itself, and says so."""
    whole = fault_free.outcome(mock_cluster, LONG_ASK)
    outcome, victim = struck(
        mock_cluster, "prefill", signal.SIGKILL, lambda outcome, _: outcome.placement.fallback_reason
    )

    assert outcome.token_ids == whole.token_ids
    assert outcome.placement.fallback_reason == "UNAVAILABLE"
    check_equal(begin(mock_cluster, ASKS), expected)
    check_restart(mock_cluster, victim, ASKS, expected)


def test_streams_move_if_their_decode_node_dies(mock_cluster: Cluster, expected: list[Outcome]) -> None:
    """They go on elsewhere, without a gap and without a double."""
    streams, victim = caught(mock_cluster, "decode", lambda: begin(mock_cluster, ASKS))
    mock_cluster.kill(victim)

    check_equal(streams, expected)
    check_equal(begin(mock_cluster, ASKS), expected)
    check_restart(mock_cluster, victim, ASKS, expected)


def test_a_request_moves_if_its_decode_node_dies_before_the_first_token(
    mock_cluster: Cluster, fault_free: FaultFree
) -> None:
    """Its KV is on its way: the prefill is dropped, and the request begins again with another decode node."""
    whole = fault_free.outcome(mock_cluster, LONG_ASK)
    outcome, victim = struck(
        mock_cluster, "decode", signal.SIGKILL, lambda outcome, victim: outcome.placement.decode_node_id != victim
    )

    assert outcome.token_ids == whole.token_ids
    assert outcome.placement.decode_node_id not in ("", victim)


def test_clients_see_the_death_of_the_gateway_and_its_work_is_dropped(
    mock_cluster: Cluster, expected: list[Outcome]
) -> None:
    """The connection is cut; the nodes notice and free everything."""
    streams = begin(mock_cluster, LASTING_ASKS)
    mock_cluster.kill("gateway")

    for stream in streams:
        assert stream.outcome(NOTICED_SECONDS).error
    mock_cluster.wait_idle(NOTICED_SECONDS)
    check_restart(mock_cluster, "gateway", ASKS, expected)


def test_a_stream_without_another_decode_node_fails_clearly(mock_cluster: Cluster, expected: list[Outcome]) -> None:
    """There is nowhere to go: the client is told within seconds, and what it has is the right beginning."""
    with only_one_of_each(mock_cluster):
        streams = begin(mock_cluster, LASTING_ASKS)
        mock_cluster.kill("decode-0")
        for stream, whole in zip(streams, expected, strict=True):
            outcome = stream.outcome(NOTICED_SECONDS)
            assert "no decode node" in outcome.error
            check_begins_equal(outcome, whole)
    check_restart(mock_cluster, "decode-0", ASKS, expected)


def test_a_stream_goes_on_if_the_only_decode_node_comes_back_in_time(
    mock_cluster: Cluster, expected: list[Outcome]
) -> None:
    """The gateway asks for a placement for a few seconds, and the restarted node may be one."""
    with mock_cluster.changed("gateway", **PATIENT), only_one_of_each(mock_cluster):
        streams = begin(mock_cluster, ASKS)
        mock_cluster.kill("decode-0")
        mock_cluster.start("decode-0")

        check_equal(streams, expected)


def test_a_lone_decode_node_does_without_its_lone_prefill_node(
    mock_cluster: Cluster, expected: list[Outcome], fault_free: FaultFree
) -> None:
    """The prompt whose prefill dies is computed locally, and so are later ones."""
    whole = fault_free.outcome(mock_cluster, LONG_ASK)
    with only_one_of_each(mock_cluster):
        (stream,), _ = caught(mock_cluster, "prefill", lambda: [open_grpc(mock_cluster, uncached(LONG_ASK))])
        mock_cluster.kill("prefill-0")

        assert stream.outcome().token_ids == whole.token_ids
        check_equal(begin(mock_cluster, ASKS), expected)
    check_restart(mock_cluster, "prefill-0", ASKS, expected)


def _links(cluster: Cluster) -> set[tuple[str, str]]:
    return {(link.from_node_id, name) for name, state in cluster.nodes().items() for link in state.links}
