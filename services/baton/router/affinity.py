"""Placement that counts little: a session's next request goes where its last one went; or each node in turn."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from baton.capacity.placement import Decision, place
from baton.capacity.snapshot import ClusterSnapshot, NodePair, PlacementRequest

MAX_SESSIONS = 4096
"""Sessions remembered; the one that asked longest ago goes first."""
MAX_EXTRA_SHARE = 0.1
"""Part of the best candidate's total that a session's own node may take longer."""


class SessionAffinity:
    """Decode nodes of sessions, each tenant's its own. Used on the event loop only.

    What nodes have cached is in the price of every candidate already, as far as the cache index knows it; a session's
    node wins where that says little: prompts that are still being computed, or not yet published.
    """

    def __init__(self) -> None:
        self._nodes: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    def note(self, tenant: str, session: bytes, node_id: str) -> None:
        """Remember where a request of a session runs."""
        self._nodes[tenant, session] = node_id
        self._nodes.move_to_end((tenant, session))
        if len(self._nodes) > MAX_SESSIONS:
            self._nodes.popitem(last=False)

    def prefer(
        self, tenant: str, session: bytes, snapshot: ClusterSnapshot, request: PlacementRequest, decision: Decision
    ) -> Decision:
        """Return the decision with the session's own node first, if that takes little longer than the choice."""
        node_id, choice = self._nodes.get((tenant, session)), decision.choice
        if node_id is None or choice is None or choice.estimate is None or choice.decode_node_id == node_id:
            return decision
        pins = frozenset({NodePair(node_id, ""), NodePair(node_id, choice.prefill_node_id)})
        pinned = {each for pin in pins for each in pin}
        nodes = tuple(snapshot.current(node) for node in snapshot.nodes if node.node_id in pinned)
        own = place(replace(snapshot, nodes=nodes), replace(request, pins=pins)).choice
        limit = (1 + MAX_EXTRA_SHARE) * choice.estimate.total_seconds
        if own is None or own.estimate is None or own.estimate.total_seconds > limit:
            return decision
        others = (each for each in decision.candidates if each != own)
        return Decision((own, *others), decision.num_left_out)


class RoundRobin:
    """Whose turn it is. Prompts are computed on prefill nodes as long as there are any that can."""

    def __init__(self) -> None:
        self._num_placed = 0

    def place(self, snapshot: ClusterSnapshot, request: PlacementRequest) -> Decision:
        """Return the pair whose turn it is, priced, that can run the request; without a choice, all reasons."""
        for pair in self._in_turn(snapshot):
            if not request.pins or pair in request.pins:
                decision = place(snapshot, replace(request, pins=frozenset({pair})))
                plain = [candidate for candidate in decision.candidates if not candidate.pull_node_id]
                if plain and plain[0].estimate:
                    self._num_placed += 1
                    return Decision(tuple(plain))
        return place(snapshot, request)

    def _in_turn(self, snapshot: ClusterSnapshot) -> Sequence[NodePair]:
        """Return all pairs from the next one on, those without a prefill node last; a node that can do both is one."""
        decoders = _rotated([node.node_id for node in snapshot.nodes if node.can_decode], self._num_placed)
        prefillers = _rotated([node.node_id for node in snapshot.nodes if node.can_prefill], self._num_placed)
        return [
            NodePair(decoder, "" if prefiller == decoder else prefiller)
            for prefiller in (*prefillers, "")
            for decoder in decoders
        ]


def _rotated(node_ids: Sequence[str], by: int) -> Sequence[str]:
    start = by % len(node_ids) if node_ids else 0
    return [*node_ids[start:], *node_ids[:start]]
