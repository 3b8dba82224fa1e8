"""Finds what `placement.place` would choose without pricing every pair of nodes: branch and bound over floors.

A floor is a time that no candidate of a node undercuts. Floors come from a few coefficients per node, which are kept
for as long as the node's snapshot is the same object; so a decision computes a few numbers for each node, and all
terms only of the candidates whose floor does not exceed what is held already. Cost: O(nodes), and a few candidates.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, groupby, islice

from baton.capacity.placement import Candidate, Decision, PrefillPolicy, latest_tie, place
from baton.capacity.search.floors import SLACK, ComputeFloor, DecodeFloor
from baton.capacity.search.pricing import Best, Limit, Offer, Pricing
from baton.capacity.search.remote_order import RemoteOrder
from baton.capacity.search.request_floors import LOCAL, NODE, PULL, REMOTE, Entry, PrefillerFloor, RequestFloors
from baton.capacity.snapshot import (
    ClusterSnapshot,
    NodeSnapshot,
    PlacementRequest,
    expected_output_tokens,
    infeasible_reason,
)
from baton.capacity.terms import DecodeTerms, joined_seconds

NUM_BEST = 2
"""Candidates of a decision that are told in their order, the choice among them, unless more are wanted: five of them
make a decision take half as long again."""
MAX_INFEASIBLE = 4
"""Infeasible candidates of a decision that are told, with their reasons."""
NUM_ALTERNATIVES = 2
"""Other prefill nodes that a decision names for the chosen decode node, at most."""
MAX_DIRECT_NODES = 2
"""Nodes up to which all candidates are priced: of two nodes that takes half as long as a search, of four longer."""
MAX_PAIRS = 256
"""Pairs that a search looks at before it is content with the first of each decode node. Among 128 unlike nodes sixty
are enough; where hundreds are all alike, nothing tells them apart but their links."""
FIRST_PAIRS = 8
"""Prefill nodes of each decode node that it looks at then, the soonest."""


class PlacementSearch:
    """Decides as `place` does. Holds the coefficients of the nodes that it has seen, by snapshot.

    Args:
        num_best: Candidates of a decision that are told in their order, the choice among them; 2 or more.
    """

    def __init__(self, num_best: int = NUM_BEST) -> None:
        self._num_best = num_best
        self._nodes: tuple[NodeSnapshot, ...] = ()
        self._decoder_at: list[int] = []
        self._prefiller_at: list[int] = []
        self._decoders: list[DecodeFloor] = []
        self._prefillers: list[ComputeFloor] = []
        self._num_pairs = 0
        """Candidates without pulls."""

    def place(
        self, snapshot: ClusterSnapshot, request: PlacementRequest, *, policy: PrefillPolicy = "cheapest"
    ) -> Decision:
        """Return the choice, the next best candidates and the alternatives of `place`, in its order.

        Where the request names its pairs, or nodes are few, all candidates are there; where nothing is feasible, every
        decode node with its reason.
        """
        if request.pins or len(snapshot.nodes) <= MAX_DIRECT_NODES:
            pinned = {node_id for pin in request.pins for node_id in pin}
            nodes = (node for node in snapshot.nodes if not pinned or node.node_id in pinned)
            return place(replace(snapshot, nodes=tuple(map(snapshot.current, nodes))), request, policy=policy)
        self._renew(snapshot.nodes, snapshot.expected_output_tokens)
        search = _Search(snapshot, request, policy, self._decoders, self._prefillers)
        return search.decide(self._num_best, self._num_pairs)

    def _renew(self, nodes: tuple[NodeSnapshot, ...], mean_output: float | None) -> None:
        """Bring the coefficients up to date: of the nodes that changed, or of all where nodes have come or gone."""
        before, self._nodes = self._nodes, nodes
        changed = [index for index, is_other in enumerate(map(operator.is_not, nodes, before)) if is_other]
        key = operator.attrgetter("node_id", "role")
        if len(nodes) != len(before) or any(key(nodes[index]) != key(before[index]) for index in changed):
            self._decoders = [DecodeFloor.of(node, mean_output) for node in nodes if node.can_decode]
            self._prefillers = [ComputeFloor.of(node) for node in nodes if node.can_prefill]
            self._decoder_at = list(accumulate((node.can_decode for node in nodes), initial=0))
            self._prefiller_at = list(accumulate((node.can_prefill for node in nodes), initial=0))
            num_own = sum(node.can_prefill for node in nodes if node.can_decode)
            self._num_pairs = len(self._decoders) * (1 + len(self._prefillers)) - num_own
            return
        for index in changed:
            node = nodes[index]
            if node.can_decode:
                self._decoders[self._decoder_at[index]] = DecodeFloor.of(node, mean_output)
            if node.can_prefill:
                self._prefillers[self._prefiller_at[index]] = ComputeFloor.of(node)


class _Search:
    """One search. Visits decode nodes by the floor of each kind of candidate, and their prefill nodes by theirs."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        request: PlacementRequest,
        policy: PrefillPolicy,
        decoders: Sequence[DecodeFloor],
        prefillers: Sequence[ComputeFloor],
    ) -> None:
        self._snapshot, self._request = snapshot, request
        self._decoders, self._prefillers = decoders, prefillers
        self._floors = RequestFloors(snapshot, request, decoders, prefillers)
        self._entries = self._floors.rough()
        self._num_feasible = len(self._entries)
        heapq.heapify(self._entries)
        self._reached: list[Entry] = []
        self._closers: dict[int, tuple[Offer, list[Entry]]] = {}
        self._pricing = Pricing(snapshot, request, policy)
        self._orders: dict[tuple[str, int], RemoteOrder] = {}

    def decide(self, num_best: int, num_pairs: int) -> Decision:
        """Return the choice, the best others, its alternatives, and some infeasible candidates, of so many in all."""
        best = Best(num_best)
        while self._entries and self._entries[0][:2] <= best.limit:
            self._visit(heapq.heappop(self._entries), best)
        if not best.kept:
            return Decision(tuple(self._infeasible_decoders()))
        is_back, first = best.kept[0][0][0], best.kept[0][1].candidate(self._request)
        assert first.estimate is not None
        made = {best.kept[0][0]: first}
        rank, choice = self._plainest(best, (is_back, latest_tie(first.estimate)))
        others = dict(best.kept)
        if choice.prefill:
            alternatives = Best(1 + NUM_ALTERNATIVES)
            self._order(choice.decode, self._floors.prefillers).offer_to(alternatives)
            others |= dict(alternatives.kept)
        others.pop(rank, None)
        ordered = [(rank, choice), *((other, others[other]) for other in sorted(others))]
        candidates = [made.get(each) or parts.candidate(self._request) for each, parts in ordered]
        candidates += self._infeasible(choice.decode.node)
        return Decision(tuple(candidates), num_left_out=max(0, num_pairs - len(candidates)))

    def _plainest(self, best: Best, limit: Limit) -> Offer:
        """Return the candidate of least `Candidate.plainness` among those that are as good as the best one."""
        if all(rank[:2] > limit for rank, _ in best.kept[1:]):
            return best.kept[0]
        near = [entry for entry in (*self._reached, *self._entries) if entry[:2] <= limit]
        node_of = {index: self._decoders[index].compute.node for _, _, _, index in near}
        near.sort(key=lambda entry: (node_of[entry[3]].last_used, node_of[entry[3]].node_id))

        def of_kind(kind: int) -> Iterator[NodeSnapshot]:
            for entry in near:
                kinds = self._closer(entry[3])[1] if entry[2] == NODE else (entry,)
                if any(each[2] == kind and each[:2] <= limit for each in kinds):
                    yield node_of[entry[3]]

        offers = chain(
            map(self._pricing.local, map(self._pricing.decode, of_kind(LOCAL))),
            self._plainest_remotes(of_kind(REMOTE), limit),
            filter(None, map(self._pricing.pulling, map(self._pricing.decode, of_kind(PULL)))),
        )
        return next((offer for offer in islice(offers, MAX_PAIRS) if offer[0][:2] <= limit), best.kept[0])

    def _plainest_remotes(self, decoders: Iterable[NodeSnapshot], limit: Limit) -> Iterator[Offer]:
        """Give the remote candidates that may be within a limit by when their nodes were used, then by ids."""
        for _, group in groupby(decoders, key=lambda node: node.last_used):
            equals, groups = list(group), [self._floors.prefillers]
            if len(equals) > 1:  # of all pairs of these those of one prefill node's use after the other
                by_use = dict[int, list[PrefillerFloor]]()
                for prefiller in self._floors.prefillers:
                    by_use.setdefault(prefiller[4].node.last_used, []).append(prefiller)
                groups = [by_use[last_used] for last_used in sorted(by_use)]
            for prefillers in groups:
                for node in equals:
                    order = self._order(self._pricing.decode(node), self._floors.prefillers)
                    pairs = order.within(prefillers, limit)
                    pairs.sort(key=lambda pair: (pair[2].node.last_used, pair[1]))
                    yield from order.priced(pairs, limit)

    def _infeasible(self, chosen: NodeSnapshot) -> Iterator[Candidate]:
        """Return why some nodes cannot run the request, as the candidates that they would be part of."""
        able, request = self._floors.prefillers, self._request
        if self._num_feasible == len(self._decoders) and len(able) == len(self._prefillers):
            return iter(())
        able_ids = {compute.node.node_id for *_, compute in able}
        prefillers = (
            Candidate(chosen.node_id, compute.node.node_id, infeasible_reason=reason)
            for compute in self._prefillers
            if compute.node.node_id not in able_ids
            and (reason := infeasible_reason(compute.node, request, request.num_prompt_tokens))
        )
        return islice(chain(self._infeasible_decoders(), prefillers), MAX_INFEASIBLE)

    def _infeasible_decoders(self) -> Iterator[Candidate]:
        """Give the decode nodes that cannot run the request, with their reasons."""
        request, mean = self._request, self._snapshot.expected_output_tokens
        for floor in self._decoders:
            node = floor.compute.node
            num_tokens = request.num_prompt_tokens + math.ceil(expected_output_tokens(request, node, mean))
            reason = infeasible_reason(node, request, num_tokens)
            if reason:
                yield Candidate(node.node_id, "", infeasible_reason=reason)

    def _closer(self, index: int) -> tuple[Offer, Sequence[Entry]]:
        """Return a decode node's local candidate, and with its total the floors of those of other kinds."""
        closer = self._closers.get(index)
        if closer is None:
            floors, compute = self._floors, self._decoders[index].compute
            decode = self._pricing.decode(compute.node)
            is_back, total, *_ = (local := self._pricing.local(decode))[0]
            closer = self._closers[index] = local, [(is_back, total, LOCAL, index)]
            if floors.pullable > decode.match.device_tokens:
                own = compute.seconds(floors.pullable, self._request.num_prompt_tokens)
                queue, imposed = compute.waits(own, self._request.num_prompt_tokens, self._snapshot.now_seconds)
                start = max(queue, decode.room_seconds) + own
                seconds = decode.total_seconds(start, decode.slowdown_seconds + imposed) * SLACK
                closer[1].append((is_back, seconds, PULL, index))
            if floors.prefillers:
                joined = joined_seconds(decode, decode.match.restore.seconds + floors.least_start)
                seconds = decode.total_seconds(max(joined, decode.room_seconds), decode.slowdown_seconds) * SLACK
                closer[1].append((self._pricing.are_remotes_back, seconds, REMOTE, index))
        return closer

    def _visit(self, entry: Entry, best: Best) -> None:
        """Price a decode node's candidates of a kind, as far as they can be among the best, or look at it closely."""
        _, _, kind, index = entry
        if kind == NODE:
            for closer in self._closer(index)[1]:
                heapq.heappush(self._entries, closer)
            best.offer(self._closer(index)[0])  # its total is known by now, and limits all others
            return
        self._reached.append(entry)
        decode = self._pricing.decode(self._decoders[index].compute.node)
        if kind == REMOTE:
            prefillers = self._floors.prefillers
            num_drawn = sum(order.num_drawn for order in self._orders.values())
            self._order(decode, prefillers if num_drawn < MAX_PAIRS else prefillers[:FIRST_PAIRS]).offer_to(best)
        elif kind == PULL and (offer := self._pricing.pulling(decode)) is not None:
            best.offer(offer)

    def _order(self, decode: DecodeTerms, prefillers: Sequence[PrefillerFloor]) -> RemoteOrder:
        """Return the remote candidates of a decode node with the first of all prefill nodes, in their order."""
        key = (decode.node.node_id, len(prefillers))
        order = self._orders.get(key)
        if order is None:
            order = RemoteOrder(self._snapshot, self._request, self._pricing, decode, prefillers)
            self._orders[key] = order
        return order
