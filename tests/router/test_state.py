"""The router's picture of the cluster, and what outcomes do to it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from baton.capacity import cost
from baton.capacity.cost import PromptQueue
from baton.capacity.placement import place
from baton.capacity.snapshot import Link, LowerPrefix, PlacementRequest, QueuedPrompt, TierRates
from baton.capacity.terms import queue_seconds
from baton.internal.v1 import node_pb2
from baton.kv.kv_format import KvDtype
from baton.router.cluster.snapshots import RENEWAL_SECONDS
from baton.router.cluster.streams import HeldUp, StreamsInFlight
from baton.router.nodes import LinkMeasurement, Outcome
from baton.router.proto import load_from_proto
from baton.router.state import RouterState, StateLimits
from router.samples import DGX, IDLE, LAYOUT, MAC, MODEL, OUTCOME, Clock, busy_report

REQUEST = PlacementRequest(8192, 32)


def pair_state() -> RouterState:
    """Return a state with the DGX and the Mac."""
    state = RouterState(Clock(), StateLimits())
    state.register(MAC)
    state.register(DGX)
    return state


def settle_remote(state: RouterState, outcome: Outcome) -> None:
    """Place the seed's request, which goes to the DGX, and report its outcome."""
    choice = place(state.snapshot(MODEL), REQUEST).choice
    assert choice is not None
    assert choice.prefill_node_id == "dgx"
    state.account("p", choice, REQUEST)
    state.settle(outcome)


def test_unmeasured_links_have_the_declared_rate() -> None:
    """10 GbE until a node has probed, and the link says that it is declared."""
    link = pair_state().snapshot(MODEL).link("dgx", "mac")

    assert (link.bytes_per_second, link.is_measured) == (1.25e9, False)


def test_probed_links_have_their_own_rate() -> None:
    """What the decode node measured replaces what was declared."""
    state = pair_state()
    mac = state.nodes.get("mac")
    assert mac is not None

    state.measure_link(mac, LinkMeasurement("dgx", 1e8, 0.002))

    link = state.snapshot(MODEL).link("dgx", "mac")
    assert (link.bytes_per_second, link.round_trip_seconds, link.is_measured) == (1e8, 0.002, True)


def test_unlike_layouts_are_named() -> None:
    """The reason names the field in which the two caches differ."""
    state = pair_state()
    assert state.snapshot(MODEL).link("dgx", "mac").mismatch == ""
    dgx = state.nodes.get("dgx")
    assert dgx is not None
    state.remove(dgx)
    state.register(replace(DGX, epoch=2, layout=replace(LAYOUT, dtype=KvDtype.FLOAT32)))

    mismatch = state.snapshot(MODEL).link("dgx", "mac").mismatch

    assert "dtype" in mismatch
    assert "bfloat16" in mismatch
    assert "float32" in mismatch


def test_a_placement_loads_its_nodes_until_they_report_it() -> None:
    """The second request sees the first one's prompt in the queue of the prefill node."""
    state = pair_state()
    choice = place(state.snapshot(MODEL), REQUEST).choice
    assert choice is not None

    state.account("p", choice, REQUEST)

    dgx, mac = state.snapshot(MODEL).nodes
    assert dgx.load.num_pending_prompt_tokens == 8192
    assert mac.load.num_waiting == 1
    assert mac.load.num_free_blocks == 10_000 - 514
    mac_node, dgx_node = state.nodes.get("mac"), state.nodes.get("dgx")
    assert mac_node is not None
    assert dgx_node is not None
    state.report(mac_node, replace(IDLE, accepted_placement_ids=("p",)))
    state.report(dgx_node, replace(IDLE, accepted_placement_ids=("p",)))
    assert [node.load.num_waiting for node in state.snapshot(MODEL).nodes] == [0, 0]


def test_a_node_whose_memory_is_short_has_one_place() -> None:
    """Who comes while another runs there waits until that one ends; afterwards all places count again."""
    state = RouterState(Clock(), StateLimits())
    mac = state.register(MAC)
    busy = node_pb2.LoadReport(running_request_count=1, free_block_count=9_000, mean_context_token_count=64)
    short = node_pb2.LoadReport(is_sparing_memory=True)
    short.MergeFrom(busy)
    places, waits = [], []

    for message in (busy, short, busy):
        state.report(mac, load_from_proto(message))
        (node,) = state.snapshot(MODEL).nodes
        choice = place(state.snapshot(MODEL), REQUEST).choice
        assert choice is not None
        assert choice.estimate is not None
        places.append(node.max_batch_size)
        waits.append(choice.estimate.queue_seconds > 0)

    assert places == [MAC.max_batch_size, 1, MAC.max_batch_size]
    assert waits == [False, True, False]


@pytest.mark.parametrize("field", ["waiting_request_count", "running_request_count", "pending_prompt_token_count"])
def test_a_node_that_reports_nonsense_costs_nobody_else_a_placement(field: str) -> None:
    """Neither their time, nor memory, nor an error."""
    state = RouterState(Clock(), StateLimits())
    mac = state.register(MAC)
    state.register(replace(MAC, node_id="mac-2"))
    message = node_pb2.LoadReport(
        free_block_count=9_000, running_request_count=1, decoding_request_count=1, mean_context_token_count=math.inf
    )
    setattr(message, field, 2**31 - 1)
    state.report(mac, load_from_proto(message))

    choice = place(state.snapshot(MODEL), REQUEST).choice

    assert choice is not None
    assert choice.decode_node_id == "mac-2"


def test_of_placements_without_an_outcome_the_oldest_are_forgotten() -> None:
    """What is remembered is bounded; each outcome is taken once."""
    state = RouterState(Clock(), StateLimits(), max_placements=2)
    state.register(MAC)
    state.register(DGX)
    for name in "abc":
        choice = place(state.snapshot(MODEL), REQUEST).choice
        assert choice is not None
        state.account(name, choice, REQUEST)

    seen = [state.settle(replace(OUTCOME, placement_id=name, num_completion_tokens=2)) for name in "abcc"]

    assert [comparison is not None for comparison in seen] == [False, True, True, False]


def test_a_wait_unlike_its_estimate_makes_waits_uncertain_and_no_longer() -> None:
    """It is chance (who came between, in what order requests reached the node): the next one's would be made wrong."""
    state = RouterState(Clock(), StateLimits())
    state.register(MAC)
    state.register(DGX)
    before = {node.node_id: node for node in state.snapshot(MODEL).nodes}["dgx"]
    for name in "abc":
        choice = next(each for each in place(state.snapshot(MODEL), REQUEST).candidates if each.prefill_node_id)
        state.account(name, choice, REQUEST)
        state.settle(replace(OUTCOME, placement_id=name, queue_seconds=30.0, prefill_seconds=0.0))

    after = {node.node_id: node for node in state.snapshot(MODEL).nodes}["dgx"]

    assert after.spread.queue > 2 * before.spread.queue
    assert queue_seconds(replace(after, queue=PromptQueue.of([1.0])), 9.0) == 1.0


def test_a_load_from_before_a_pass_counts_from_then_on() -> None:
    """A pass lasts longer than the time between two reports, which all tell of the moment before it."""
    clock = Clock()
    state = RouterState(clock, StateLimits())
    dgx = state.register(DGX)
    load = replace(IDLE.load, num_waiting=2, queued_prompts=(QueuedPrompt("", 0, 8192), QueuedPrompt("", 0, 8192)))
    left = []
    for age_seconds in (0.0, 0.5, 1.0):
        state.report(dgx, replace(IDLE, load=load, age_seconds=age_seconds))
        (node,) = state.snapshot(MODEL).nodes
        left.append(node.queue.total_seconds)
        clock.seconds += 0.5

    assert left == pytest.approx([left[0], left[0] - 0.5, left[0] - 1.0])
    assert left[-1] > 0


def test_slow_prefills_slow_the_profile() -> None:
    """Prefills that take thrice the estimate lower the node's rate, step by step."""
    state = pair_state()
    before = state.corrected_profile(DGX).prefill_flops

    for _ in range(10):
        settle_remote(state, replace(OUTCOME, prefill_seconds=4.4))

    assert before / 3.2 < state.corrected_profile(DGX).prefill_flops < before / 2.0
    assert state.corrected_profile(MAC) == MAC.profile


@pytest.mark.parametrize(("num_cached_tokens", "is_learnt"), [(4096, False), (0, True)])
def test_a_prompt_of_which_part_came_back_teaches_nothing_of_speed(num_cached_tokens: int, *, is_learnt: bool) -> None:
    """Copying is part of the measured time; what the node computed all the same is all that was measured."""
    state = RouterState(Clock(), StateLimits())
    dgx, _ = state.register(DGX), state.register(MAC)
    state.report(dgx, replace(IDLE, tier_rates=TierRates(1e9, 1e9, 1000)))
    request = replace(REQUEST, lower_tokens={"dgx": LowerPrefix(4096, 4096, 0)})
    choice = place(state.snapshot(MODEL), request).choice
    assert choice is not None
    assert (choice.prefill_node_id, choice.prefill_restored_tokens) == ("dgx", 4096)

    state.account("p", choice, request)
    state.settle(replace(OUTCOME, prefill_cached_tokens=num_cached_tokens, prefill_seconds=30.0))

    assert (state.prefill_calibration.factor("dgx") > 1.0) is is_learnt


def test_what_comes_back_takes_blocks_but_no_computation() -> None:
    """Until the nodes report the placement."""
    state = RouterState(Clock(), StateLimits())
    mac = state.register(MAC)
    state.report(mac, replace(IDLE, tier_rates=TierRates(1e11, 1e11, 1000)))
    request = replace(REQUEST, cached_tokens={"mac": 1600}, lower_tokens={"mac": LowerPrefix(4096, 4096, 0)})
    choice = place(state.snapshot(MODEL), request).choice
    assert choice is not None
    assert choice.decode_cached_tokens == 5696

    state.account("p", choice, request)

    (after,) = state.snapshot(MODEL).nodes
    assert after.load.num_pending_prompt_tokens == 8192 - 5696
    assert after.load.num_free_blocks == IDLE.load.num_free_blocks - (8192 - 1600 + 32) // 16


def test_slow_steps_slow_the_decode_node() -> None:
    """Decode time is compared per token after the first, with the uncorrected step in the batch that was expected."""
    clock = Clock()
    state = RouterState(clock, StateLimits())
    state.register(MAC)
    state.register(DGX)

    for _ in range(40):
        clock.seconds += 2.0
        for node in state.nodes:
            state.report(node, IDLE)
        settle_remote(state, replace(OUTCOME, num_completion_tokens=32, decode_seconds=31 * 0.0531))

    assert state.decode_calibration.factor("mac") == pytest.approx(1.9, rel=0.03)


def test_who_comes_later_does_not_slow_the_node() -> None:
    """A step is compared with one of the batch that was met: those who joined do not make the node a slow one."""
    state = RouterState(Clock(), StateLimits())
    state.register(replace(MAC, max_batch_size=16))
    state.register(DGX)
    with_eleven = cost.step_seconds(MAC.shape, MAC.profile, 12, 8192 + 16)

    met = replace(OUTCOME, num_completion_tokens=32, decode_seconds=31 * with_eleven, mean_batch_size=12.0)
    settle_remote(state, met)

    assert with_eleven > 1.5 * cost.step_seconds(MAC.shape, MAC.profile, 1, 8192 + 16)
    assert state.decode_calibration.factor("mac") == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("told", [1e308, 5e-324])
def test_no_batch_that_a_node_tells_breaks_what_is_learnt(told: float) -> None:
    """It is no larger than the node decodes together, as it registered."""
    state = pair_state()

    settle_remote(state, replace(OUTCOME, num_completion_tokens=32, decode_seconds=1.0, mean_batch_size=told))

    assert 0.8 <= state.decode_calibration.factor("mac") <= 1.25


def test_preempted_requests_teach_nothing_of_speed() -> None:
    """Time lost to recomputation is not the step's."""
    state = pair_state()

    settle_remote(state, replace(OUTCOME, num_completion_tokens=32, decode_seconds=100.0, num_preemptions=1))

    assert state.decode_calibration.reported("mac") == 0.0
    assert state.prefill_calibration.reported("dgx") == 0.0


def test_an_exposed_transfer_lowers_the_link_s_rate() -> None:
    """A transfer that outlasted the computation shows the link's limit."""
    state = pair_state()

    settle_remote(state, replace(OUTCOME, transfer_seconds=1.5, exposed_seconds=1.4))

    link = state.snapshot(MODEL).link("dgx", "mac")
    assert 1.25e9 / 1.25 <= link.bytes_per_second < 1.25e9
    assert link.is_measured


def test_a_hidden_transfer_never_lowers_the_link_s_rate() -> None:
    """It waited for the computation, so its duration says nothing against the link."""
    state = pair_state()

    settle_remote(state, replace(OUTCOME, transfer_seconds=1.4, exposed_seconds=0.05))

    assert state.snapshot(MODEL).link("dgx", "mac").bytes_per_second == 1.25e9


def test_a_hidden_transfer_teaches_what_its_frames_take() -> None:
    """1.07 GB at 1.25 GB/s are 0.859 s: of 1.4 s 32 frames took 17 ms each, and half of an empty call is 0.5 ms.

    An outcome moves the factor by a quarter at most; a transfer that its bytes explain leaves it.
    """
    state, plain = pair_state(), pair_state()

    settle_remote(state, replace(OUTCOME, transfer_seconds=1.4, exposed_seconds=0.05))
    settle_remote(plain, replace(OUTCOME, transfer_seconds=0.85, exposed_seconds=0.05))

    links = [each.snapshot(MODEL).link("dgx", "mac") for each in (state, plain)]
    assert [link.frame_seconds for link in links] == pytest.approx([0.0005 * 1.25, 0.0005])


@pytest.mark.parametrize(
    ("transfer_seconds", "factor"), [(0.9, (1.72 / 0.9) ** 0.2), (0.1, 1.25), (4.0, (1.72 / 4.0) ** 0.2)]
)
def test_a_transfer_that_another_link_held_up_teaches_what_the_card_carries(
    monkeypatch: pytest.MonkeyPatch, transfer_seconds: float, factor: float
) -> None:
    """1.72 s were expected of a card of 1.25 GB/s that two links share; of the link itself it says nothing."""
    state = pair_state()
    mac = state.nodes.get("mac")
    assert mac is not None
    state.measure_link(mac, LinkMeasurement("dgx", 1.25e9, 0.001))
    before = state._snapshots.card_rates("dgx", "mac")[0]
    monkeypatch.setattr(StreamsInFlight, "held_up", lambda *_: HeldUp(1.25e9, 1.72, is_bound=True))

    settle_remote(state, replace(OUTCOME, transfer_seconds=transfer_seconds, exposed_seconds=transfer_seconds))

    after = next(node for node in state.snapshot(MODEL).nodes if node.node_id == "dgx")
    assert (before, after.send_bytes_per_second) == pytest.approx((1.25e9, 1.25e9 * factor))
    assert state.snapshot(MODEL).link("dgx", "mac").bytes_per_second == 1.25e9


@pytest.mark.parametrize(("transfer_seconds", "factor"), [(0.2, 1.25), (2.0, (0.859 / 2.0) ** 0.2)])
def test_a_transfer_behind_others_of_its_link_teaches_of_the_link(transfer_seconds: float, factor: float) -> None:
    """0.859 s were expected: what it waited is no part of the time that the link was busy with it."""
    state = pair_state()
    choice = place(state.snapshot(MODEL), REQUEST).choice
    assert choice is not None
    state.account("earlier", choice, REQUEST)

    settle_remote(state, replace(OUTCOME, transfer_seconds=transfer_seconds, exposed_seconds=transfer_seconds))

    assert state.snapshot(MODEL).link("dgx", "mac").bytes_per_second == pytest.approx(1.25e9 * factor, rel=1e-3)


@pytest.mark.parametrize(
    ("transfer_seconds", "is_pulled", "is_bound", "card", "link"),
    [
        (4.0, False, False, (1.72 / 4.0) ** 0.2, 1.0),
        (0.4, False, False, 1.0, (0.859 / 0.4) ** 0.2),
        (4.0, True, True, (1.72 / 4.0) ** 0.2, 1.0),
    ],
)
def test_what_held_up_a_stream_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, transfer_seconds: float, is_pulled: bool, is_bound: bool, card: float, link: float
) -> None:
    """A card that carries less than it was taken for; a link that carries more; pulls have no computation to hide."""
    state = pair_state()
    mac = state.nodes.get("mac")
    assert mac is not None
    state.measure_link(mac, LinkMeasurement("dgx", 1.25e9, 0.001))
    monkeypatch.setattr(StreamsInFlight, "held_up", lambda *_: HeldUp(1.25e9, 1.72, is_bound))
    pull = {"pull_node_id": "dgx", "exposed_seconds": 0.0} if is_pulled else {"exposed_seconds": transfer_seconds}

    settle_remote(state, replace(OUTCOME, transfer_seconds=transfer_seconds, **pull))

    assert state._snapshots.card_rates("dgx", "mac")[0] == pytest.approx(1.25e9 * card, rel=1e-3)
    assert state.snapshot(MODEL).link("dgx", "mac").bytes_per_second == pytest.approx(1.25e9 * link, rel=1e-3)


def test_a_node_that_connects_again_keeps_its_links_and_one_that_starts_again_none() -> None:
    """It tells them again; what was learnt of them and of its card stays as well, or goes."""
    state = pair_state()
    for node_id, is_kept in (("mac", True), ("mac", False)):
        mac = state.nodes.get(node_id)
        assert mac is not None
        state.measure_link(mac, LinkMeasurement("dgx", 1e8, 0.001))
        for calibration, key in ((state.link_calibration, ("dgx", "mac")), (state.card_calibration, "mac")):
            calibration.add(key, 1.0, 4.0)
        if not is_kept:
            state.remove(mac)
        again = state.register(MAC if is_kept else replace(MAC, epoch=MAC.epoch + 1))
        state.measure_link(again, LinkMeasurement("dgx", 1e8, 0.001))

        assert state.link_calibration.has_learnt(("dgx", "mac")) == is_kept
        assert state.card_calibration.has_learnt("mac") == is_kept


def test_a_link_that_is_measured_anew_forgets_what_was_learnt() -> None:
    """Of the old rate; not where a node that has connected again tells the same once more."""
    state = pair_state()
    mac = state.nodes.get("mac")
    assert mac is not None
    measured = LinkMeasurement("dgx", 1e8, 0.001)
    state.measure_link(mac, measured)
    state.link_calibration.add(("dgx", "mac"), 1.0, 4.0)

    state.measure_link(mac, LinkMeasurement("dgx", 1e8, 0.001))
    again = state.snapshot(MODEL).link("dgx", "mac").bytes_per_second
    state.measure_link(mac, LinkMeasurement("dgx", 4e8, 0.001))

    assert again == pytest.approx(1.25e8)
    assert state.snapshot(MODEL).link("dgx", "mac").bytes_per_second == 4e8


def test_a_fallback_teaches_nothing_of_the_link() -> None:
    """The prompt was computed elsewhere in the end."""
    state = pair_state()

    settle_remote(
        state,
        replace(OUTCOME, prefill_node_id="mac", fallback_reason="PEER_LOST", transfer_seconds=9, exposed_seconds=9),
    )

    assert state.snapshot(MODEL).link("dgx", "mac").bytes_per_second == 1.25e9


def test_output_lengths_are_expected_again() -> None:
    """What requests of a model generated is what the next is expected to."""
    state = pair_state()

    settle_remote(state, replace(OUTCOME, num_completion_tokens=20))

    assert state.snapshot(MODEL).expected_output_tokens == 20


def test_unknown_outcomes_are_left_out() -> None:
    """An outcome of another router's placement, or one reported twice, changes nothing."""
    state = pair_state()
    settle_remote(state, OUTCOME)
    once = state.prefill_calibration.factor("dgx")

    state.settle(OUTCOME)

    assert state.prefill_calibration.factor("dgx") == once


def test_a_restarted_node_begins_without_corrections() -> None:
    """A new epoch has measured itself again; a mere reconnection has not."""
    state = pair_state()
    settle_remote(state, replace(OUTCOME, prefill_seconds=4.4))

    state.register(DGX)
    assert state.prefill_calibration.reported("dgx") > 1.0
    dgx = state.nodes.get("dgx")
    assert dgx is not None
    state.remove(dgx)
    state.register(replace(DGX, epoch=2))
    assert state.prefill_calibration.reported("dgx") == 0.0


def two_decoders(**mini: Any) -> RouterState:
    """Return a state with two Macs, of which "mac" has a prefix and is busy."""
    state = RouterState(Clock(), StateLimits())
    mac = state.register(MAC)
    state.register(replace(MAC, node_id="mini", **mini))
    state.report(mac, busy_report(num_waiting=4, num_pending_prompt_tokens=40_000))
    return state


def settle_pull(state: RouterState, **changes: Any) -> None:
    """Place the seed's request, whose beginning the second Mac pulls, and report the outcome."""
    request = replace(REQUEST, cached_tokens={"mac": 8176})
    choice = place(state.snapshot(MODEL, holder_ids=["mac"]), request).choice
    assert choice is not None
    assert (choice.decode_node_id, choice.pull_node_id, choice.pulled_tokens) == ("mini", "mac", 8176)
    state.account("p", choice, request)
    (mini,) = (node for node in state.snapshot(MODEL).nodes if node.node_id == "mini")
    assert mini.load.num_pending_prompt_tokens == 16
    outcome = replace(
        OUTCOME, decode_node_id="mini", prefill_node_id="mini", pull_node_id="mac", pulled_tokens=8176, **changes
    )
    state.settle(outcome)


def test_a_pull_teaches_the_rate_of_the_link() -> None:
    """With what its cache takes to read; nothing hides it, so it raises and lowers the rate alike."""
    slow, quick, broken = two_decoders(), two_decoders(), two_decoders()

    settle_pull(slow, pull_seconds=1.5, transfer_seconds=0.5, exposed_seconds=0.0)
    settle_pull(quick, pull_seconds=0.5, transfer_seconds=0.5, exposed_seconds=0.0)
    settle_pull(broken, pull_seconds=1.5, exposed_seconds=0.0, num_breaks=1)

    rates = [state.snapshot(MODEL, holder_ids=["mac"]).link("mac", "mini") for state in (slow, quick, broken)]
    assert rates[0].bytes_per_second < 1.25e9 < rates[1].bytes_per_second
    assert rates[2].bytes_per_second == 1.25e9


def test_what_is_computed_after_a_pull_teaches_the_speed_of_the_node() -> None:
    """The pulled positions are not computed; the rest took as long as it should, so nothing changes."""
    state = two_decoders()
    shape, profile = MAC.shape, MAC.profile

    settle_pull(state, prefill_seconds=cost.prefill_seconds(shape, profile, 8176, 8192))

    assert state.prefill_calibration.factor("mini") == pytest.approx(1.0)


def test_a_prompt_in_many_passes_is_no_sign_of_a_slow_node() -> None:
    """Its estimate says as much: each pass reads the weights."""
    state = two_decoders(max_step_tokens=5)
    shape, profile = MAC.shape, MAC.profile
    measured = cost.prefill_seconds(shape, profile, 8176, 8192, 5)

    assert measured == pytest.approx(4 * shape.weight_bytes / profile.decode_bytes_per_second)
    settle_pull(state, prefill_seconds=measured)

    assert state.prefill_calibration.factor("mini") == pytest.approx(1.0)


def test_a_snapshot_is_the_same_object_until_something_changes() -> None:
    """Searches keep what they have worked out by it; a report, a placement or a second renews only its node."""
    clock = Clock()
    state = RouterState(clock, StateLimits())
    mac, _dgx = state.register(MAC), state.register(DGX)
    first = state.snapshot(MODEL, are_kept=True).nodes

    assert state.snapshot(MODEL, are_kept=True).nodes is first
    state.report(mac, busy_report(1, num_running=3))
    second = state.snapshot(MODEL, are_kept=True).nodes
    assert [now is before for now, before in zip(second, first, strict=True)] == [True, False]
    assert second[1].load.num_running == 3
    clock.seconds += RENEWAL_SECONDS
    assert all(
        now is not before for now, before in zip(state.snapshot(MODEL, are_kept=True).nodes, second, strict=True)
    )


def test_an_assumed_placement_and_a_silent_node_are_seen_in_time() -> None:
    """What is kept ends with the placement's time, and when the node falls silent."""
    clock = Clock()
    state = RouterState(clock, StateLimits(assumed_ttl_seconds=0.3, silent_seconds=0.7))
    state.register(MAC)
    decision = place(state.snapshot(MODEL), PlacementRequest(1000, 10))
    assert decision.choice is not None
    state.account("p", decision.choice, PlacementRequest(1000, 10))

    assert state.snapshot(MODEL).nodes[0].load.num_waiting == 1
    clock.seconds += 0.31
    assert state.snapshot(MODEL).nodes[0].load.num_waiting == 0
    clock.seconds += 0.41
    assert "no report" in state.snapshot(MODEL).nodes[0].unusable_reason


def test_a_link_is_worked_out_again_when_it_is_measured_or_corrected() -> None:
    """Between those it is the same object; a correction fades, so it is renewed besides."""
    clock = Clock()
    state = RouterState(clock, StateLimits())
    mac, _dgx = state.register(MAC), state.register(DGX)

    def link() -> Link:
        return state.snapshot(MODEL).link("dgx", "mac")

    declared = link()
    assert link() is declared
    state.measure_link(mac, LinkMeasurement("dgx", 1e8, 0.002))
    assert link().bytes_per_second == 1e8
    choice = place(state.snapshot(MODEL), PlacementRequest(8192, 32)).candidates
    remote = next(each for each in choice if not each.is_local)
    state.account("p", remote, PlacementRequest(8192, 32))
    state.settle(replace(OUTCOME, transfer_seconds=40.0, exposed_seconds=39.0))
    corrected = link().bytes_per_second
    assert corrected < 1e8
    clock.seconds += RENEWAL_SECONDS
    assert corrected < link().bytes_per_second < 1e8


def test_nodes_on_one_device_share_its_time() -> None:
    """Where one decodes, the other takes twice as long; what one has to compute, the other's prompts wait for."""
    state = RouterState(Clock(), StateLimits())
    mac = state.register(replace(MAC, device_id="m/gpu"))
    state.register(replace(DGX, device_id="m/gpu"))
    state.register(replace(DGX, node_id="other", device_id="m/gpu2"))
    before = {node.node_id: node for node in state.snapshot(MODEL).nodes}

    state.report(mac, busy_report(num_running=1, num_decoding=1, num_waiting=1, num_pending_prompt_tokens=4096))

    after = {node.node_id: node for node in state.snapshot(MODEL).nodes}
    assert after["dgx"].profile.prefill_flops == before["dgx"].profile.prefill_flops / 2
    assert after["mac"].profile == before["mac"].profile
    assert after["dgx"].queue == after["mac"].queue
    joining = cost.JOIN_STEPS * cost.step_seconds(MAC.shape, MAC.profile, 1, mac.load.mean_context_tokens)
    assert after["dgx"].queue.total_seconds == pytest.approx(
        cost.prefill_seconds(MAC.shape, MAC.profile, 0, 4096) + joining, rel=1e-3
    )
    assert (after["other"].profile, after["other"].queue.total_seconds) == (before["other"].profile, 0.0)


def test_what_ends_on_one_node_frees_the_device_for_the_others() -> None:
    """A placement that nobody took up, and the node itself: what is kept of its neighbours tells at once."""
    clock = Clock()
    state = RouterState(clock, StateLimits(assumed_ttl_seconds=RENEWAL_SECONDS / 2))
    mac = state.register(replace(MAC, device_id="m/gpu"))
    state.register(replace(DGX, device_id="m/gpu"))

    def seen() -> tuple[float, float]:
        dgx, *_ = state.snapshot(MODEL, are_kept=True).nodes
        return dgx.queue.total_seconds, dgx.profile.prefill_flops

    state.report(mac, busy_report(num_running=1, num_decoding=1))
    local = next(each for each in place(state.snapshot(MODEL), REQUEST).candidates if each.is_local)
    state.account("p", local, REQUEST)
    clock.seconds += 0.8 * RENEWAL_SECONDS / 2
    placed_seconds, shared_flops = seen()
    clock.seconds += 0.4 * RENEWAL_SECONDS / 2
    expired_seconds, _ = seen()
    state.remove(mac)

    assert placed_seconds > 1.0
    assert expired_seconds == 0.0
    assert seen() == (0.0, 2 * shared_flops)


def test_a_network_card_is_as_fast_as_its_fastest_link_was_measured_last() -> None:
    """Outwards and inwards, also when that link is measured again and slower."""
    state = RouterState(Clock(), StateLimits())
    mac, _dgx, _other = state.register(MAC), state.register(DGX), state.register(replace(DGX, node_id="other"))
    for node_id, rate in (("dgx", 1e9), ("other", 3e9), ("other", 2e9), ("dgx", 1.5e9)):
        state.measure_link(mac, LinkMeasurement(node_id, rate, 0.0))

    dgx, seen_mac, other = state.snapshot(MODEL).nodes

    assert (dgx.send_bytes_per_second, other.send_bytes_per_second) == (1.5e9, 2e9)
    assert seen_mac.receive_bytes_per_second == 2e9
