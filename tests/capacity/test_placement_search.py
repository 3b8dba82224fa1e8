"""The search that the router uses decides as the reference does, and prices few candidates."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import pytest

from baton.capacity.cost import NodeProfile
from baton.capacity.placement import Decision, PrefillPolicy, place
from baton.capacity.search import remote_order
from baton.capacity.search.placement_search import NUM_ALTERNATIVES, PlacementSearch
from baton.capacity.snapshot import ClusterSnapshot, Link, NodeLoad, NodeRole, NodeSnapshot, PlacementRequest
from capacity.microbench import loaded_router
from capacity.microbench.loaded_router import LoadedRouter, random_load, random_profile
from capacity.random_clusters import random_cluster
from capacity.samples import node

CLUSTERS_PER_TEST = int(os.environ.get("BATON_CLUSTERS", "400")) // 8
"""`BATON_CLUSTERS=10000` compares decisions on as many."""


def decides_alike(decision: Decision, other: Decision) -> bool:
    """Return whether two decisions are the same to who asked: choice, runner-up, and the alternatives that are sent."""
    return (
        decision.choice == other.choice
        and decision.runner_up == other.runner_up
        and list(decision.alternatives[:NUM_ALTERNATIVES]) == list(other.alternatives[:NUM_ALTERNATIVES])
    )


class CheckedSearch(PlacementSearch):
    """Compares each decision with the reference's, which sees every node as it is at the moment."""

    def __init__(self) -> None:
        super().__init__()
        self.num_decisions = 0
        self.num_different = 0

    def place(
        self, snapshot: ClusterSnapshot, request: PlacementRequest, *, policy: PrefillPolicy = "cheapest"
    ) -> Decision:
        """Return the decision of the search."""
        decision = super().place(snapshot, request, policy=policy)
        present = replace(snapshot, nodes=tuple(map(snapshot.current, snapshot.nodes)))
        self.num_decisions += 1
        self.num_different += not decides_alike(decision, place(present, request, policy=policy))
        return decision


@pytest.mark.parametrize("block", range(8))
def test_it_decides_as_the_reference(block: int) -> None:
    """Choice, next best and alternatives are equal, to the last bit, whatever the cluster has."""
    for seed in range(block * CLUSTERS_PER_TEST, (block + 1) * CLUSTERS_PER_TEST):
        snapshot, request, policy = random_cluster(random.Random(seed))

        found = PlacementSearch().place(snapshot, request, policy=policy)

        assert decides_alike(found, place(snapshot, request, policy=policy)), f"seed {seed}"


def test_a_decision_that_differs_is_told_from_its_like() -> None:
    """The comparison sees another choice and another runner-up."""
    snapshot, request = _large_cluster(2), PlacementRequest(4000, 100)
    decision = place(snapshot, request)
    others = place(replace(snapshot, nodes=snapshot.nodes[2:]), request)

    assert decides_alike(decision, decision)
    assert not decides_alike(decision, others)


def test_what_it_has_kept_of_nodes_does_not_outlive_them() -> None:
    """A node whose snapshot is another object is looked at again."""
    search, request = PlacementSearch(), PlacementRequest(4000, 100)
    for seed in range(20):
        rng = random.Random(seed)
        snapshot = _large_cluster(6)
        changed = tuple(replace(each, load=random_load(rng, 8, 1000)) for each in snapshot.nodes)
        snapshot = replace(snapshot, nodes=changed)

        assert decides_alike(search.place(snapshot, request), place(snapshot, request))


@pytest.mark.parametrize(("seed", "rate"), [(0, 1.0), (1, 1.0), (2, 1.0), (53, 4.0), (55, 4.0), (132, 4.0)])
def test_it_decides_as_the_reference_while_nodes_report_and_outcomes_come(
    seed: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has kept of nodes since their last reports never hides the best candidate of the moment.

    Seeds by which it once did: a prompt became sooner than others at once, as these shrank, and a node whose last
    stream ended meanwhile was asked for its own prefix.
    """
    search = CheckedSearch()
    monkeypatch.setattr(loaded_router, "REQUESTS_PER_NODE_SECOND", rate)

    LoadedRouter(10 if rate == 1 else [4, 6, 10, 20][seed % 4], seed=seed, search=search).run(60)

    assert (search.num_decisions, search.num_different) == (60, 0)


def test_it_prices_few_of_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 900 pairs of unlike, busy nodes it looks closely at fewer than one in ten."""
    priced = []
    stream_terms = remote_order.stream_terms
    monkeypatch.setattr(remote_order, "stream_terms", lambda *terms: priced.append(terms) or stream_terms(*terms))
    for num_tokens in (100, 1000, 8000):
        PlacementSearch().place(_large_cluster(30), PlacementRequest(num_tokens, 200))

    assert 0 < len(priced) < 3 * 90


def test_slow_links_to_the_soonest_prefill_nodes_hide_no_other() -> None:
    """The best pair of a decode node may be of its last prefill node, the only one that is near."""
    prefillers = [node(f"p{index:02}", "prefill", "h200") for index in range(20)]
    near = node("p20", "prefill", "a100")
    decoders = [node("d0", "decode", "m3-ultra"), node("d1", "decode", "m3-ultra")]
    links = {(each.node_id, "d0"): Link(1e9, 1e-3) for each in prefillers} | {("p20", "d1"): Link(2.5e10, 1e-4)}
    snapshot = ClusterSnapshot((*prefillers, near, *decoders), Link(1e8, 1e-3), links, 100.0)

    decision = PlacementSearch().place(snapshot, PlacementRequest(8000, 100))

    assert decides_alike(decision, place(snapshot, PlacementRequest(8000, 100)))
    assert [decision.choice and decision.choice.prefill_node_id] == ["p20"]


def _large_cluster(num_pairs: int) -> ClusterSnapshot:
    rng = random.Random(15)

    def drawn(node_id: str, role: NodeRole) -> NodeSnapshot:
        profile: NodeProfile = random_profile(rng)
        load: NodeLoad = random_load(rng, 8, 100_000)
        return replace(node(node_id, role, "a100", load=load), profile=profile)

    prefillers = [drawn(f"p{index:02}", "prefill") for index in range(num_pairs)]
    decoders = [drawn(f"d{index:02}", "decode") for index in range(num_pairs)]
    links = {
        (sender.node_id, receiver.node_id): Link(10 ** rng.uniform(8.5, 10.5), 1e-4)
        for sender in prefillers
        for receiver in decoders
    }
    return ClusterSnapshot((*prefillers, *decoders), Link(1e9, 1e-3), links, 100.0)
