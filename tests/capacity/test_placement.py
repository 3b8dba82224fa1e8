"""Where requests go, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.capacity import cost
from baton.capacity.cost import CostEstimate
from baton.capacity.placement import Candidate, place
from baton.capacity.snapshot import ClusterSnapshot, Link, NodeLoad, NodePair, PlacementRequest, room_seconds
from capacity.samples import GIGABIT, TEN_GIGABIT, node, pair

SEED = PlacementRequest(8192, 32)


def test_the_pair_beats_the_mac_at_ten_gigabit() -> None:
    """The seed's 8k prompt is prefilled on the DGX: 2.35 s against 6.4 s, layer by layer."""
    decision = place(pair(TEN_GIGABIT), SEED)

    remote, local = decision.candidates
    assert decision.choice is remote
    assert (remote.prefill_node_id, remote.layers_per_frame) == ("dgx", 1)
    assert remote.estimate is not None
    assert local.estimate is not None
    assert remote.estimate.total_seconds == pytest.approx(2.35, abs=0.02)
    assert local.estimate.total_seconds == pytest.approx(6.43, abs=0.02)


def test_the_mac_alone_wins_at_one_gigabit() -> None:
    """At 1 GbE the 16-bit transfer takes 8.6 s, so the prompt is prefilled at home."""
    decision = place(pair(GIGABIT), SEED)

    assert decision.choice is not None
    assert decision.choice.is_local


def test_workers_prefill_for_each_other_and_never_remotely_for_themselves() -> None:
    """Each alone and each for the other: the DGX computes the prompt, and the Mac decodes."""
    workers = (node("dgx", "worker", "dgx-spark"), node("mac", "worker", "m3-ultra"))

    decision = place(ClusterSnapshot(workers, default_link=TEN_GIGABIT), SEED)

    pairs = {NodePair(each.decode_node_id, each.prefill_node_id) for each in decision.candidates}
    assert pairs == {NodePair("mac", ""), NodePair("mac", "dgx"), NodePair("dgx", ""), NodePair("dgx", "mac")}
    assert decision.choice == place(pair(TEN_GIGABIT), SEED).choice


def test_the_first_token_does_not_wait_for_the_transfer() -> None:
    """TTFT of a remote candidate is queue, prefill and a round trip; the transfer delays only the start of decoding."""
    remote = place(pair(Link(1.25e8, 0.001)), SEED).candidates[1].estimate

    assert remote is not None
    assert remote.time_to_first_token_seconds == pytest.approx(remote.prefill_seconds + 0.001)
    assert remote.start_seconds == pytest.approx(remote.time_to_first_token_seconds + remote.exposed_seconds)


def test_a_prefix_on_the_decode_node_brings_the_prefill_home() -> None:
    """With all but 100 tokens in the Mac's cache, sending or computing elsewhere is pointless."""
    decision = place(pair(), replace(SEED, cached_tokens={"mac": 8092}))

    assert decision.choice is not None
    assert decision.choice.is_local
    assert decision.choice.decode_cached_tokens == 8092


@pytest.mark.parametrize("pair_of_nodes", [NodePair("mac", ""), NodePair("mac", "dgx")])
def test_a_pinned_request_has_only_its_pair(pair_of_nodes: NodePair) -> None:
    """Cheaper or dearer than others."""
    decision = place(pair(), replace(SEED, pins=frozenset({pair_of_nodes})))

    assert [NodePair(each.decode_node_id, each.prefill_node_id) for each in decision.candidates] == [pair_of_nodes]


def test_a_prompt_that_must_be_computed_where_it_is_decoded_is_no_ones_else() -> None:
    """Every remote candidate says why it is none."""
    decision = place(pair(TEN_GIGABIT), replace(SEED, needs_local_prefill=True))

    assert decision.choice is not None
    assert decision.choice.is_local
    reasons = [candidate.infeasible_reason for candidate in decision.candidates if not candidate.is_local]
    assert reasons == ["the prompt's log-probabilities are wanted"]


def test_among_several_pins_the_cheapest_is_taken() -> None:
    """And without a node of its own a pin is no candidate."""
    pins = frozenset({NodePair("mac", ""), NodePair("mac", "dgx"), NodePair("gone", "")})
    decision = place(pair(TEN_GIGABIT), replace(SEED, pins=pins))

    assert decision.choice is not None
    assert decision.choice.prefill_node_id == "dgx"
    assert len(decision.candidates) == 2


def test_only_the_missing_part_is_sent() -> None:
    """KV bytes cover [c_d, n), whatever the prefill node has."""
    remote = place(pair(), replace(SEED, cached_tokens={"mac": 1024, "dgx": 4096})).choice

    assert remote is not None
    assert remote.kv_bytes == (8192 - 1024) * 128 * 1024
    assert (remote.decode_cached_tokens, remote.prefill_cached_tokens) == (1024, 4096)


def test_what_the_prefill_node_has_cached_is_read_before_the_rest_is_computed() -> None:
    """Positions that the decode node has are not read; and of what is read, the transfer goes on meanwhile."""
    dgx, mac = pair(TEN_GIGABIT).nodes
    reading = replace(dgx, load=replace(dgx.load, reading_bytes_per_second=1e9))
    request = replace(SEED, cached_tokens={"mac": 1024, "dgx": 8191}, pins=frozenset({NodePair("mac", "dgx")}))

    known, unknown = (
        place(ClusterSnapshot((sender, mac), default_link=TEN_GIGABIT), request).candidates[0].estimate
        for sender in (reading, dgx)
    )

    assert known is not None
    assert unknown is not None
    read_seconds = (8191 - 1024) * 128 * 1024 / 1e9
    assert known.queue_seconds == pytest.approx(unknown.queue_seconds + read_seconds)
    assert known.prefill_seconds == pytest.approx(unknown.prefill_seconds)
    sent_seconds = known.transfer_seconds
    assert max(read_seconds, sent_seconds) < known.start_seconds < read_seconds + sent_seconds


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    """Logits of the last position are needed, so a hit covers at most n - 1 tokens."""
    choice = place(pair(), replace(SEED, cached_tokens={"mac": 8192})).choice

    assert choice is not None
    assert choice.decode_cached_tokens == 8191


def test_a_backlog_on_the_prefill_node_sends_the_prompt_home() -> None:
    """With minutes of prompts waiting on the DGX, the Mac computes its own."""
    busy = node("dgx", "prefill", "dgx-spark", load=NodeLoad(100, 1, 400_000, 100_000))
    decision = place(ClusterSnapshot((busy, pair().nodes[1]), TEN_GIGABIT), SEED)

    assert decision.choice is not None
    assert decision.choice.is_local


def test_local_prefill_is_charged_for_the_requests_it_stalls() -> None:
    """Every running request stands still for the whole prefill."""
    load = NodeLoad(num_running=3, num_free_blocks=100_000, mean_context_tokens=1000)
    cluster = ClusterSnapshot((node("mac", "decode", "m3-ultra", load=load),), TEN_GIGABIT)

    estimate = place(cluster, SEED).candidates[0].estimate

    assert estimate is not None
    assert estimate.imposed_seconds > 3 * estimate.prefill_seconds


def test_a_worker_that_decodes_is_charged_for_prompts_of_others() -> None:
    """Its batch takes a token in each of the prompt's passes, where it would have taken one in each step."""
    busy = NodeLoad(num_running=4, num_decoding=4, num_free_blocks=100_000, mean_context_tokens=1000)
    mac = replace(node("mac", "decode", "m3-ultra"), max_step_tokens=512)
    idle = place(ClusterSnapshot((node("dgx", "worker", "dgx-spark"), mac), default_link=TEN_GIGABIT), SEED)
    dgx = replace(node("dgx", "worker", "dgx-spark", load=busy), max_step_tokens=512)
    decision = place(ClusterSnapshot((dgx, mac), default_link=TEN_GIGABIT), SEED)

    def remote(candidates: Sequence[Candidate]) -> CostEstimate:
        (found,) = (each for each in candidates if (each.prefill_node_id, each.decode_node_id) == ("dgx", "mac"))
        assert found.estimate is not None
        return found.estimate

    imposed, prefill = remote(decision.candidates).imposed_seconds, remote(decision.candidates).prefill_seconds
    step = cost.step_seconds(dgx.shape, dgx.profile, 4, 1000)
    theirs = 16 * dgx.shape.step_flop(4, 1000) / dgx.profile.prefill_flops
    assert prefill == pytest.approx(remote(idle.candidates).prefill_seconds + theirs)
    assert remote(idle.candidates).imposed_seconds == 0
    assert imposed == pytest.approx(4 * (prefill - 16 * step), rel=0.02)


def test_prompts_for_others_are_nobody_in_the_batch() -> None:
    """Nothing of them decodes: a request that does is neither slowed by them nor slows them."""
    exports = NodeLoad(num_running=3, num_waiting=2, num_exports=5, num_free_blocks=100_000)
    alone = ClusterSnapshot((node("mac", "worker", "m3-ultra", load=exports),), default_link=TEN_GIGABIT)

    choice = place(alone, SEED).choice

    assert choice is not None
    assert choice.estimate is not None
    assert choice.estimate.imposed_seconds == 0
    assert choice.estimate.step_seconds == pytest.approx(0.0265, rel=0.05)


def test_an_idle_decode_node_is_preferred_to_a_full_one() -> None:
    """Waiting for a slot costs time, so the twin with room wins, although its id sorts later."""
    full = NodeLoad(num_running=8, num_free_blocks=100_000, mean_context_tokens=100)
    nodes = (node("a", "decode", "a100", load=full), node("b", "decode", "a100"))

    choice = place(ClusterSnapshot(nodes, TEN_GIGABIT), PlacementRequest(100, 100)).choice

    assert choice is not None
    assert choice.decode_node_id == "b"


def test_a_full_pool_costs_waiting_time() -> None:
    """Without free blocks the request queues; that is dear but not impossible."""
    load = NodeLoad(num_running=1, num_free_blocks=0, mean_context_tokens=100)
    cluster = ClusterSnapshot((node("a", "decode", "a100", load=load),), TEN_GIGABIT)

    estimate = place(cluster, PlacementRequest(100, 100)).candidates[0].estimate

    assert estimate is not None
    assert estimate.queue_seconds > 0


def test_room_comes_as_requests_end() -> None:
    """All blocks of one at once: who lacks any waits for its end, and after those who wait already for theirs."""
    seconds = [
        room_seconds(node("a", "decode", "a100", load=NodeLoad(num_running=4, num_free_blocks=free)), 60, 8.0)
        for free in (60, 59, 0, -60)
    ]

    assert seconds == [0.0, 2.0, 2.0, 2.0]
    full = replace(node("a", "decode", "a100", load=NodeLoad(num_running=4, num_free_blocks=-60)), num_blocks=240)
    assert room_seconds(full, 60, 8.0) == 4.0


def test_a_worker_whose_pool_is_full_computes_no_prompt_for_others_at_once() -> None:
    """It has neither a slot nor blocks until one of those who decode there has ended."""
    load = NodeLoad(num_running=4, num_decoding=4, num_free_blocks=0, mean_context_tokens=1000)
    workers = [node("w", "worker", "h200", load=each) for each in (load, replace(load, num_free_blocks=100_000))]
    decoder = node("d", "decode", "m3-ultra")

    waits = [
        candidate.estimate.queue_seconds
        for worker in workers
        for candidate in place(ClusterSnapshot((worker, decoder), TEN_GIGABIT), PlacementRequest(1000, 100)).candidates
        if candidate.prefill_node_id == "w" and candidate.decode_node_id == "d" and candidate.estimate
    ]

    assert waits[0] > 20 * waits[1] > 0


@pytest.mark.parametrize(
    ("changed", "request_", "reason"),
    [
        ({"unusable_reason": "draining"}, SEED, "draining"),
        ({"num_blocks": 10}, SEED, "needs 514 blocks, has 10"),
        ({}, replace(SEED, num_prompt_tokens=131_072), "context is 131072 tokens"),
        ({}, replace(SEED, excluded_node_ids=frozenset({"a"})), "excluded"),
    ],
)
def test_infeasible_nodes_say_why(changed: dict[str, object], request_: PlacementRequest, reason: str) -> None:
    """The reason names the node and the bound that it breaks."""
    cluster = ClusterSnapshot((node("a", "decode", "a100", **changed),), TEN_GIGABIT)  # type: ignore[arg-type]

    decision = place(cluster, request_)

    assert decision.choice is None
    assert decision.candidates[0].infeasible_reason.startswith("a: ")
    assert reason in decision.candidates[0].infeasible_reason


def test_nodes_with_unlike_caches_are_not_paired() -> None:
    """A layout mismatch makes the remote candidate infeasible and leaves the local one."""
    link = replace(TEN_GIGABIT, mismatch="KV layouts differ in dtype")
    decision = place(replace(pair(), links={("dgx", "mac"): link}), SEED)

    assert decision.choice is not None
    assert decision.choice.is_local
    assert decision.candidates[1].infeasible_reason == "KV layouts differ in dtype"


def test_equal_candidates_are_chosen_by_name_and_locally_first() -> None:
    """Of twins the one whose id sorts first is taken, every time, in whatever order they are listed."""
    twins = (node("b", "decode", "a100"), node("a", "decode", "a100"))

    choices = [place(ClusterSnapshot(order, TEN_GIGABIT), SEED).choice for order in (twins, twins[::-1])]

    assert choices[0] == choices[1]
    assert choices[0] is not None
    assert choices[0].decode_node_id == "a"


@pytest.mark.parametrize(("mean", "max_tokens", "expected"), [(None, 1000, 256), (None, 32, 32), (700.0, 1000, 700)])
def test_the_output_counted_on_follows_recent_requests(mean: float | None, max_tokens: int, expected: int) -> None:
    """The recent mean within the request's bound; 256 before any request has finished."""
    estimate = place(replace(pair(), expected_output_tokens=mean), PlacementRequest(100, max_tokens)).choice

    assert estimate is not None
    assert estimate.estimate is not None
    assert estimate.estimate.expected_output_tokens == expected


def test_a_policy_prefers_its_kind_where_it_is_feasible() -> None:
    """A remote prefill is taken although it is dearer, and a local one where no pair is left."""
    remote = place(pair(GIGABIT), SEED, policy="remote").choice
    local = place(pair(TEN_GIGABIT), SEED, policy="local").choice
    fallback = place(pair(GIGABIT), replace(SEED, excluded_node_ids=frozenset({"dgx"})), policy="remote").choice

    assert [choice.prefill_node_id for choice in (remote, local, fallback) if choice] == ["dgx", "", ""]


loads = st.builds(
    NodeLoad,
    num_waiting=st.integers(0, 20),
    num_running=st.integers(0, 8),
    num_pending_prompt_tokens=st.integers(0, 100_000),
    num_free_blocks=st.integers(-50, 2_000),
    mean_context_tokens=st.floats(0, 10_000),
)
nodes = st.builds(
    node,
    st.just("?"),
    st.sampled_from(["prefill", "decode"]),
    st.sampled_from(["dgx-spark", "m3-ultra", "h200", "a100"]),
    load=loads,
    num_blocks=st.sampled_from([10, 2_000]),
    unusable_reason=st.sampled_from(["", "", "draining"]),
)
clusters = st.builds(
    lambda listed, link: ClusterSnapshot(
        tuple(replace(item, node_id=f"n{index}") for index, item in enumerate(listed)), link
    ),
    st.lists(nodes, max_size=6),
    st.builds(Link, st.floats(1e6, 1e11), st.floats(0, 0.1), mismatch=st.sampled_from(["", "", "dtype"])),
)
requests = st.builds(
    PlacementRequest,
    st.integers(1, 20_000),
    st.integers(1, 2_000),
    st.dictionaries(st.sampled_from([f"n{index}" for index in range(6)]), st.integers(0, 30_000)),
    st.frozensets(st.sampled_from([f"n{index}" for index in range(6)]), max_size=2),
)


@given(clusters, requests)
@settings(max_examples=150, deadline=None)
def test_the_choice_is_feasible_and_as_good_as_the_best(cluster: ClusterSnapshot, request_: PlacementRequest) -> None:
    """Every pair is a candidate, no unusable node is chosen. Nothing is uncertain here, so the choice is the least."""
    decision = place(cluster, request_)

    decoders = [item for item in cluster.nodes if item.role == "decode"]
    num_prefillers = len(cluster.nodes) - len(decoders)
    assert len(decision.candidates) == len(decoders) * (1 + num_prefillers)
    totals = [c.estimate.total_seconds for c in decision.candidates if c.estimate]
    assert all(bool(c.infeasible_reason) != (c.estimate is not None) for c in decision.candidates)
    if decision.choice is None:
        assert not totals
        return
    assert decision.choice.estimate is not None
    assert decision.choice.estimate.total_seconds == min(totals)
    unusable = {item.node_id for item in cluster.nodes if item.unusable_reason} | request_.excluded_node_ids
    assert not unusable & {decision.choice.decode_node_id, decision.choice.prefill_node_id}


@given(clusters, requests)
@settings(max_examples=150, deadline=None)
def test_local_is_a_candidate_wherever_remote_is(cluster: ClusterSnapshot, request_: PlacementRequest) -> None:
    """A decode node that can take a request with a remote prefill can take it alone."""
    decision = place(cluster, request_)

    feasible = {(c.decode_node_id, c.prefill_node_id) for c in decision.candidates if c.estimate}
    assert all((decode_node_id, "") in feasible for decode_node_id, _ in feasible)


@given(clusters, requests)
@settings(max_examples=100, deadline=None)
def test_every_term_is_finite_and_not_negative(cluster: ClusterSnapshot, request_: PlacementRequest) -> None:
    """No load, cache or link gives a negative or endless term; decoding never starts before the first token exists."""
    for candidate in place(cluster, request_).candidates:
        estimate = candidate.estimate
        if estimate is None:
            continue
        assert 0 <= estimate.exposed_seconds < float("inf")
        assert 0 <= estimate.time_to_first_token_seconds <= estimate.start_seconds <= estimate.total_seconds
        assert 0 <= estimate.imposed_seconds < float("inf")
