"""Placement in turn."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from baton.capacity.snapshot import DECLARED_LINK, ClusterSnapshot, NodePair, PlacementRequest
from baton.router.affinity import RoundRobin
from router.samples import DGX, IDLE, MAC

NODES = tuple(
    replace(node, node_id=f"{node.node_id}-{number}", load=IDLE.load) for node in (MAC, DGX) for number in range(2)
)
REQUEST = PlacementRequest(num_prompt_tokens=1000, max_tokens=10)


def pairs(snapshot: ClusterSnapshot, request: PlacementRequest, count: int) -> list[NodePair]:
    """Return where so many requests go."""
    turns, found = RoundRobin(), []
    for _ in range(count):
        choice = turns.place(snapshot, request).choice
        assert choice is not None
        found.append(NodePair(choice.decode_node_id, choice.prefill_node_id))
    return found


def test_every_node_has_its_turn() -> None:
    """Prefill and decode nodes, equally often."""
    found = pairs(ClusterSnapshot(NODES, DECLARED_LINK), REQUEST, 8)

    assert Counter(pair.decode_node_id for pair in found) == {"mac-0": 4, "mac-1": 4}
    assert Counter(pair.prefill_node_id for pair in found) == {"dgx-0": 4, "dgx-1": 4}


def test_what_cannot_serve_is_passed_over() -> None:
    """Down to prefill on the decode nodes themselves."""
    nodes = tuple(replace(node, unusable_reason="silent" if node.role == "prefill" else "") for node in NODES)

    found = pairs(ClusterSnapshot(nodes, DECLARED_LINK), REQUEST, 4)

    assert {pair.prefill_node_id for pair in found} == {""}
    assert {pair.decode_node_id for pair in found} == {"mac-0", "mac-1"}


def test_pins_are_kept() -> None:
    """And a request that fits nowhere is told why."""
    snapshot = ClusterSnapshot(NODES, DECLARED_LINK)
    pinned = replace(REQUEST, pins=frozenset({NodePair("mac-1", "dgx-0")}))

    assert set(pairs(snapshot, pinned, 3)) == {NodePair("mac-1", "dgx-0")}
    assert RoundRobin().place(snapshot, replace(REQUEST, num_prompt_tokens=10**7)).choice is None
