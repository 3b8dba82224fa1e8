"""When a node brings a prefix back from host memory or disk, and when that decides where a request goes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.capacity import cost
from baton.capacity.placement import place
from baton.capacity.prefix_reuse import best_pull, match_prefix
from baton.capacity.snapshot import ClusterSnapshot, LowerPrefix, NodeLoad, NodeSnapshot, PlacementRequest, TierRates
from capacity.samples import TEN_GIGABIT, node

RATES = TierRates(host_bytes_per_second=10e9, disk_bytes_per_second=2e9, max_read_blocks=1000)
"""Of 8,000 tokens, 1.05 GB: 0.1 s from host memory, 0.5 s more from disk; an M3 Ultra computes them in 6 s."""
ALL_ON_DISK = LowerPrefix(host_tokens=0, num_tokens=8000, disk_tokens=8000)
ALL_ON_HOST = LowerPrefix(host_tokens=8000, num_tokens=8000, disk_tokens=0)
SLOW_DISK = RATES._replace(disk_bytes_per_second=1e8)


def mac(node_id: str = "b", rates: TierRates = RATES, load: NodeLoad | None = None) -> NodeSnapshot:
    """Return a decode node with tiers."""
    return replace(node(node_id, "decode", "m3-ultra", load=load), tier_rates=rates)


def request_for(lower: LowerPrefix, num_cached: int = 0, num_prompt_tokens: int = 8192) -> PlacementRequest:
    """Return a request of whose prompt node "b" has something."""
    return PlacementRequest(num_prompt_tokens, 32, cached_tokens={"b": num_cached}, lower_tokens={"b": lower})


@pytest.mark.parametrize(
    ("lower", "read_seconds"), [(ALL_ON_DISK, 0.524), (ALL_ON_HOST, 0.0), (LowerPrefix(4000, 8000, 2000), 0.131)]
)
def test_a_prefix_comes_back_at_measured_rates(lower: LowerPrefix, read_seconds: float) -> None:
    """What is on disk is read, and all is copied."""
    beginning = match_prefix(request_for(lower), mac())

    assert (beginning.device_tokens, beginning.num_tokens) == (0, 8000)
    assert beginning.restore.read_seconds == pytest.approx(read_seconds, abs=1e-3)
    assert beginning.restore.copy_seconds == pytest.approx(0.105, abs=1e-3)


@pytest.mark.parametrize(
    ("rates", "lower", "expected"),
    [
        (SLOW_DISK, ALL_ON_DISK, 0),
        (SLOW_DISK, LowerPrefix(4000, 8000, 4000), 4000),
        (RATES._replace(host_bytes_per_second=1e8), ALL_ON_HOST, 0),
        (TierRates(max_read_blocks=1000), ALL_ON_DISK, 8000),
        (RATES._replace(max_read_blocks=100), ALL_ON_DISK, 1600),
        (RATES._replace(max_read_blocks=100), LowerPrefix(4000, 8000, 4000), 4000),
        (TierRates(), ALL_ON_DISK, 0),
    ],
    ids=["slow disk", "slow disk, half on host", "slow copies", "rates unknown", "little room", "no room", "none"],
)
def test_only_what_is_quicker_comes_back(rates: TierRates, lower: LowerPrefix, expected: int) -> None:
    """The rest is computed; where a node has measured nothing yet, declared rates stand in."""
    assert match_prefix(request_for(lower), mac(rates=rates)).num_tokens == expected


def test_the_last_position_is_computed() -> None:
    """Its logits choose the first token, so its block does not come back."""
    assert match_prefix(request_for(ALL_ON_HOST, num_prompt_tokens=8000), mac()).num_tokens == 8000 - 16
    assert match_prefix(request_for(ALL_ON_HOST, 8000, 8000), mac()).restore.num_tokens == 0


@pytest.mark.parametrize("lower", [ALL_ON_DISK, ALL_ON_HOST])
def test_a_node_that_can_bring_a_prefix_back_is_chosen(lower: LowerPrefix) -> None:
    """Over one that must compute it, though that one would be first by its name."""
    request = request_for(lower)
    snapshot = ClusterSnapshot((mac("a"), mac("b")), default_link=TEN_GIGABIT)

    choice = place(snapshot, request).choice

    assert choice is not None
    assert (choice.decode_node_id, choice.decode_cached_tokens, choice.decode_restored_tokens) == ("b", 8000, 8000)
    estimate = choice.estimate
    assert estimate is not None
    assert estimate.start_seconds == pytest.approx(estimate.restore_seconds + estimate.prefill_seconds)
    assert place(snapshot, replace(request, lower_tokens={})).choice != choice


@pytest.mark.parametrize("rates", [SLOW_DISK, TierRates()])
def test_a_node_that_cannot_is_as_good_as_any(rates: TierRates) -> None:
    """Its disk is too slow, or it reads none."""
    snapshot = ClusterSnapshot((mac("a"), mac("b", rates)), default_link=TEN_GIGABIT)

    choice = place(snapshot, request_for(ALL_ON_DISK)).choice

    assert choice is not None
    assert (choice.decode_node_id, choice.decode_cached_tokens, choice.decode_restored_tokens) == ("a", 0, 0)


def test_a_prefix_on_a_device_is_better_than_one_on_disk() -> None:
    """Nothing has to come back."""
    request = replace(request_for(ALL_ON_DISK), cached_tokens={"a": 8000})
    snapshot = ClusterSnapshot((mac("a"), mac("b")), default_link=TEN_GIGABIT)

    choice = place(snapshot, request).choice

    assert choice is not None
    assert (choice.decode_node_id, choice.decode_restored_tokens) == ("a", 0)


def test_prompts_before_this_one_hide_the_disk() -> None:
    """It is read while they are computed; the copy is not hidden."""
    backlog = NodeLoad(num_waiting=64, num_pending_prompt_tokens=8192, num_free_blocks=100_000)

    (candidate,) = place(
        ClusterSnapshot((mac(load=backlog),), default_link=TEN_GIGABIT), request_for(ALL_ON_DISK)
    ).candidates

    assert candidate.estimate is not None
    assert candidate.estimate.queue_seconds > 0.6
    assert candidate.estimate.restore_seconds == pytest.approx(0.105, abs=1e-3)


def test_a_prefill_node_brings_its_prefix_back_too() -> None:
    """And then computes little."""
    dgx = replace(node("b", "prefill", "m3-ultra"), tier_rates=RATES)
    snapshot = ClusterSnapshot((node("a", "decode", "m2"), dgx), default_link=TEN_GIGABIT)

    choice = place(snapshot, request_for(ALL_ON_DISK)).choice

    assert choice is not None
    assert (choice.prefill_node_id, choice.prefill_cached_tokens, choice.prefill_restored_tokens) == ("b", 8000, 8000)
    assert (choice.decode_cached_tokens, choice.decode_restored_tokens) == (0, 0)
    assert choice.estimate is not None
    assert choice.estimate.restore_seconds == pytest.approx(0.629, abs=1e-3)


@pytest.mark.parametrize(
    ("lower", "expected"), [(ALL_ON_HOST, 8000), (ALL_ON_DISK, 1600), (LowerPrefix(3200, 8000, 100), 4800)]
)
def test_a_pull_takes_what_is_on_device_and_in_host_memory(lower: LowerPrefix, expected: int) -> None:
    """What is on disk alone is not there for others; nor is the last position."""
    nodes = (mac("a"), mac("b"))
    snapshot = ClusterSnapshot(nodes, default_link=TEN_GIGABIT, holder_ids={"b"})

    pull = best_pull(snapshot, request_for(lower, 1600, 8192 if expected < 8000 else 8001), nodes[0])

    assert pull is not None
    assert (pull.begin, pull.end) == (0, expected)


def test_a_node_that_brings_back_as_much_itself_asks_nobody() -> None:
    """And where nothing but files are elsewhere, there is nobody to ask."""
    nodes = (mac("a"), mac("b"))
    snapshot = ClusterSnapshot(nodes, default_link=TEN_GIGABIT, holder_ids={"b"})
    own = PlacementRequest(8192, 32, cached_tokens={"b": 4000}, lower_tokens={"a": ALL_ON_HOST})

    assert best_pull(snapshot, own, nodes[0]) is None
    assert best_pull(snapshot, request_for(ALL_ON_DISK), nodes[0]) is None


@given(
    lower=st.tuples(*[st.integers(0, 600)] * 3),
    num_cached=st.integers(0, 500),
    num_prompt=st.integers(1, 20_000),
    rates=st.builds(TierRates, st.floats(0, 1e11), st.floats(0, 1e11), st.integers(0, 1000)),
)
def test_a_node_never_does_what_takes_longer_than_computing(
    lower: tuple[int, int, int], num_cached: int, num_prompt: int, rates: TierRates
) -> None:
    """For any rates and any prefix; and no more comes back than there is, or is of use."""
    num_host, num_more, num_disk = lower
    found = LowerPrefix(16 * num_host, 16 * (num_host + num_more), 16 * min(num_disk, num_more))
    here = mac(rates=rates)

    beginning = match_prefix(request_for(found, 16 * num_cached, num_prompt), here)

    def computing(begin: int) -> float:
        return cost.prefill_seconds(here.shape, here.profile, begin, num_prompt)

    restore = beginning.restore
    assert restore.seconds + computing(beginning.num_tokens) <= computing(beginning.device_tokens)
    assert 0 <= restore.num_tokens <= found.num_tokens
    assert beginning.num_tokens < num_prompt
