"""When a decode node takes a prefix from another node's cache, and from whose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity import cost
from baton.capacity.cost import PromptQueue
from baton.capacity.placement import place
from baton.capacity.prefix_reuse import MAX_FRAME_BYTES, best_pull
from baton.capacity.snapshot import DRAINING, ClusterSnapshot, Link, NodeLoad, NodePair, NodeRole, PlacementRequest
from capacity.samples import GIGABIT, TEN_GIGABIT, node

FULL = NodeLoad(
    num_waiting=4, num_running=8, num_pending_prompt_tokens=32_000, num_free_blocks=100_000, mean_context_tokens=4096
)
"""A batch without a free place, and others who wait for one."""
REQUEST = PlacementRequest(8192, 32, cached_tokens={"a": 8000})


def two_macs(link: Link = TEN_GIGABIT, load: NodeLoad | None = None) -> ClusterSnapshot:
    """Return two decode nodes, of which "a" has the prefix."""
    nodes = (node("a", "decode", "m3-ultra", load=load), node("b", "decode", "m3-ultra"))
    return ClusterSnapshot(nodes, default_link=link, holder_ids={"a"})


def test_a_prefix_of_a_busy_node_is_pulled_by_an_idle_one() -> None:
    """8,000 tokens come in 0.84 s at 10 Gb/s; to compute them takes the Mac 6 s."""
    choice = place(two_macs(load=FULL), REQUEST).choice

    assert choice is not None
    assert (choice.decode_node_id, choice.prefill_node_id, choice.pull_node_id) == ("b", "", "a")
    assert (choice.pulled_tokens, choice.kv_bytes) == (8000, 8000 * 128 * 1024)
    assert choice.is_link_declared
    estimate = choice.estimate
    assert estimate is not None
    assert estimate.transfer_seconds == pytest.approx(0.839, abs=0.001)
    assert estimate.start_seconds == estimate.pull_seconds + estimate.prefill_seconds
    assert estimate.prefill_seconds < 0.4


def test_a_prefix_of_an_idle_node_is_used_where_it_is() -> None:
    """Nothing travels where nothing must."""
    choice = place(two_macs(), REQUEST).choice

    assert choice is not None
    assert (choice.decode_node_id, choice.pull_node_id) == ("a", "")


def test_a_slow_link_is_not_worth_it() -> None:
    """At 1 Gb/s 8,000 tokens take 8.4 s."""
    slow = place(two_macs(GIGABIT, FULL), replace(REQUEST, excluded_node_ids=frozenset({"a"}))).choice

    assert slow is not None
    assert (slow.decode_node_id, slow.pull_node_id) == ("b", "")


def test_prompts_before_this_one_hide_a_pull() -> None:
    """What arrives while others are computed delays nobody."""
    snapshot = two_macs(load=FULL)
    queued = replace(snapshot.nodes[1], queue=PromptQueue.of([0.1] * 64))
    snapshot = replace(snapshot, nodes=(snapshot.nodes[0], queued))

    pulling = next(candidate for candidate in place(snapshot, REQUEST).candidates if candidate.pull_node_id)

    assert pulling.estimate is not None
    assert pulling.estimate.pull_seconds == 0
    assert pulling.estimate.queue_seconds > pulling.estimate.transfer_seconds


@pytest.mark.parametrize(
    "unfit",
    [
        {"unusable_reason": "no report for 3.0 s"},
        {"serves_blocks": False},
        {"block_tokens": 32},
    ],
)
def test_a_node_that_cannot_serve_blocks_is_not_asked(unfit: dict[str, object]) -> None:
    """It is silent, its cache is its own, or its blocks have another size."""
    snapshot = two_macs()
    snapshot = replace(snapshot, nodes=(replace(snapshot.nodes[0], **unfit), snapshot.nodes[1]))  # type: ignore[arg-type]

    assert best_pull(snapshot, REQUEST, snapshot.nodes[1]) is None


def test_a_node_that_shuts_down_gives_what_others_take_over() -> None:
    """It takes no requests, and serves its cache until its streams have left."""
    snapshot = two_macs()
    leaving = replace(snapshot.nodes[0], unusable_reason=DRAINING)
    snapshot = replace(snapshot, nodes=(leaving, snapshot.nodes[1]))

    assert best_pull(snapshot, REQUEST, snapshot.nodes[1]) is not None


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST, excluded_node_ids=frozenset({"a"})),
        replace(REQUEST, needs_local_prefill=True),
        replace(REQUEST, pins=frozenset({NodePair("b", "")})),
        replace(REQUEST, cached_tokens={"a": 8000, "b": 8000}),
        replace(REQUEST, cached_tokens={"a": 15}),
    ],
)
def test_requests_that_may_not_pull_do_not(request_: PlacementRequest) -> None:
    """The holder has failed, the prompt is judged, the nodes are pinned, or there is no block to be had."""
    snapshot = two_macs()

    assert best_pull(snapshot, request_, snapshot.nodes[1]) is None


@pytest.mark.parametrize(
    "link", [replace(TEN_GIGABIT, mismatch="heads differ"), replace(TEN_GIGABIT, has_unlike_caches=True)]
)
def test_unlike_caches_exchange_nothing(link: Link) -> None:
    """A link that says so is no way."""
    snapshot = replace(two_macs(), links={("a", "b"): link})

    assert best_pull(snapshot, REQUEST, snapshot.nodes[1]) is None


def test_the_last_position_is_never_pulled() -> None:
    """Its logits choose the first token, so its block is computed."""
    snapshot = two_macs()

    pull = best_pull(snapshot, PlacementRequest(8192, 32, cached_tokens={"a": 8192, "b": 100}), snapshot.nodes[1])

    assert pull is not None
    assert (pull.begin, pull.end, pull.num_tokens) == (100, 8176, 8076)


def test_of_several_the_soonest_is_asked() -> None:
    """A little less over a fast link beats a little more over a slow one."""
    roles: tuple[NodeRole, ...] = ("prefill", "decode", "decode")
    nodes = tuple(node(name, role, "m3-ultra") for name, role in zip("abc", roles, strict=True))
    snapshot = ClusterSnapshot(
        nodes, default_link=TEN_GIGABIT, links={("b", "c"): GIGABIT}, holder_ids={"a", "b", "gone"}
    )

    pull = best_pull(snapshot, PlacementRequest(8192, 32, cached_tokens={"a": 7000, "b": 7100}), nodes[2])

    assert pull is not None
    assert pull.node_id == "a"


def test_a_busy_holder_reads_once_in_a_pass() -> None:
    """So its frames are large, and the stream takes a pass for each."""
    snapshot, idle = two_macs(load=FULL), two_macs()

    busy_pull, idle_pull = (best_pull(each, REQUEST, each.nodes[1]) for each in (snapshot, idle))

    assert busy_pull is not None
    assert idle_pull is not None
    assert busy_pull.layers_per_frame > idle_pull.layers_per_frame
    assert busy_pull.seconds > idle_pull.seconds
    assert busy_pull.layers_per_frame * 512 * 128 * 1024 / 32 <= MAX_FRAME_BYTES


def test_what_nobody_holds_costs_no_candidate() -> None:
    """Placement is as quick as without pulls."""
    snapshot = replace(two_macs(), holder_ids=frozenset())

    assert len(place(snapshot, REQUEST).candidates) == 2


@given(
    cached=st.integers(0, 9000),
    own=st.integers(0, 9000),
    num_tokens=st.integers(1, 9000),
    rate=st.floats(1e6, 1e11),
)
def test_a_pull_is_chosen_only_where_it_beats_computing(cached: int, own: int, num_tokens: int, rate: float) -> None:
    """Whatever the link: with the holder out of the way, the cheaper of both is taken."""
    snapshot = two_macs(Link(rate, 1e-3), FULL)
    request = PlacementRequest(num_tokens, 8, cached_tokens={"a": cached, "b": own}, pins=frozenset())

    candidates = [each for each in place(snapshot, request).candidates if each.decode_node_id == "b"]

    totals = {each.pull_node_id: each.estimate.total_seconds for each in candidates if each.estimate}
    assert candidates[0].estimate is not None
    assert candidates[0].estimate.total_seconds == min(totals.values())
    if "a" in totals:
        pulled = next(each.pulled_tokens for each in candidates if each.pull_node_id)
        assert 0 < pulled <= num_tokens - 1 - min(own, num_tokens - 1)
        computed = cost.prefill_seconds(
            snapshot.nodes[1].shape, snapshot.nodes[1].profile, min(own, num_tokens - 1), num_tokens
        )
        assert totals["a"] > totals[""] - computed
