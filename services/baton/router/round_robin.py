"""Placement that counts nothing: every decode node in turn, and every prefill node in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton.capacity.placement import Decision, place
from baton.capacity.snapshot import ClusterSnapshot, NodePair, PlacementRequest


class RoundRobin:
    """Whose turn it is. Prompts are computed on prefill nodes as long as there are any that can."""

    def __init__(self) -> None:
        self._num_placed = 0

    def place(self, snapshot: ClusterSnapshot, request: PlacementRequest) -> Decision:
        """Return the pair of nodes whose turn it is, priced; pairs that cannot run the request are passed over.

        Returns:
            A decision without a choice, with all reasons, if no pair can.
        """
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
