"""Finds what `placement.place` would choose without pricing every pair of nodes: branch and bound over floors.

A floor is a time that no candidate of a node undercuts. Floors come from a few coefficients per node, which are kept
for as long as the node's snapshot is the same object; so a decision computes a few numbers for each node, and all
terms only of the candidates whose floor does not exceed what is held already. Cost: O(nodes), and a few candidates.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice
from typing import TypeAlias

from baton.capacity.cost import FRAME_OVERHEAD_SECONDS
from baton.capacity.kv_transfer import AUTO
from baton.capacity.placement import (
    Candidate,
    Decision,
    PrefillPolicy,
    latest_tie,
    place,
)
from baton.capacity.prefix_reuse import Pull, best_pull
from baton.capacity.search.floors import SLACK, ComputeFloor, DecodeFloor
from baton.capacity.search.offers import Best, Offer, Parts
from baton.capacity.snapshot import (
    ClusterSnapshot,
    Link,
    NodeSnapshot,
    PlacementRequest,
    expected_output_tokens,
    infeasible_reason,
)
from baton.capacity.terms import (
    DecodeTerms,
    PrefillTerms,
    decode_terms,
    local_terms,
    prefill_terms,
    remote_terms,
)

NUM_BEST = 5
"""Candidates of a decision that are told in their order, the choice among them, unless more are wanted."""
MAX_INFEASIBLE = 4
"""Infeasible candidates of a decision that are told, with their reasons."""
NUM_ALTERNATIVES = 2
"""Other prefill nodes that a decision names for the chosen decode node, at most."""


class PlacementSearch:
    """Decides as `place` does. Holds the coefficients of the nodes that it has seen, by snapshot.

    Args:
        num_best: Candidates of a decision that are told in their order, the choice among them; 2 or more.
    """

    def __init__(self, num_best: int = NUM_BEST) -> None:
        self._num_best = num_best
        self._nodes: tuple[NodeSnapshot, ...] = ()
        self._decoders: dict[str, DecodeFloor] = {}
        self._prefillers: dict[str, ComputeFloor] = {}

    def place(
        self, snapshot: ClusterSnapshot, request: PlacementRequest, *, policy: PrefillPolicy = "cheapest"
    ) -> Decision:
        """Return the choice, the next best candidate and the alternatives of `place`, in its order.

        Where the request names its pairs, all candidates are there; where nothing is feasible, every decode node with
        its reason.
        """
        if request.pins:
            pinned = {node_id for pin in request.pins for node_id in pin}
            nodes = tuple(snapshot.current(node) for node in snapshot.nodes if node.node_id in pinned)
            return place(replace(snapshot, nodes=nodes), request, policy=policy)
        self._renew(snapshot.nodes)
        search = _Search(snapshot, request, policy, self._decoders.values(), self._prefillers.values())
        return search.decide(self._num_best)

    def _renew(self, nodes: tuple[NodeSnapshot, ...]) -> None:
        """Bring the coefficients up to date."""
        if nodes is self._nodes:
            return
        self._nodes, known, knew = nodes, self._decoders, self._prefillers
        self._decoders, self._prefillers = {}, {}
        for node in nodes:
            if node.can_decode:
                decode = known.get(node.node_id)
                is_same = decode is not None and decode.compute.node is node
                self._decoders[node.node_id] = decode if decode and is_same else DecodeFloor.of(node)
            if node.can_prefill:
                compute = knew.get(node.node_id)
                is_same = compute is not None and compute.node is node
                self._prefillers[node.node_id] = compute if compute and is_same else ComputeFloor.of(node)


def decides_alike(decision: Decision, other: Decision) -> bool:
    """Return whether two decisions are the same to who asked: choice, runner-up, and the alternatives that are sent."""
    return (
        decision.choice == other.choice
        and decision.runner_up == other.runner_up
        and list(decision.alternatives[:NUM_ALTERNATIVES]) == list(other.alternatives[:NUM_ALTERNATIVES])
    )


_LOCAL, _PULL, _REMOTE = range(3)
_Entry: TypeAlias = tuple[bool, float, int, int, DecodeFloor]
"""Whether the policy puts it back, floor of the total, kind, index, decode node."""
_Prefiller: TypeAlias = tuple[float, float, float, int, ComputeFloor]
"""Floors: of queue, computation and what it imposes on others, together, of the queue, and of the last; index; node."""


class _Search:
    """One search. Visits decode nodes by the floor of each kind of candidate, and their prefill nodes by theirs."""

    def __init__(
        self,
        snapshot: ClusterSnapshot,
        request: PlacementRequest,
        policy: PrefillPolicy,
        decoders: Collection[DecodeFloor],
        prefillers: Collection[ComputeFloor],
    ) -> None:
        self._snapshot, self._request = snapshot, request
        self._are_locals_back, self._are_remotes_back = policy == "remote", policy == "local"
        self._decode_terms: dict[str, DecodeTerms] = {}
        self._prefill_terms: dict[str, PrefillTerms] = {}
        self._decoders = decoders
        self._priced: dict[tuple[str, str], Offer] = {}
        self._nodes: dict[str, NodeSnapshot] = {}
        self._holders: ClusterSnapshot | None = None
        self._prefillers_seen = prefillers
        self._num_feasible = 0
        self._prefillers = [] if request.needs_local_prefill else self._sorted_prefillers(prefillers)
        self._entries = self._floors()

    def decide(self, num_best: int) -> Decision:
        """Return the choice, the best others, its alternatives, and some infeasible candidates."""
        best, entries = Best(num_best), self._entries
        floors = entries.copy()
        heapq.heapify(floors)
        while floors and floors[0][:2] <= best.limit:
            _, _, kind, _, decoder = heapq.heappop(floors)
            self._visit(kind, decoder, best)
        if not best.kept:
            return Decision(tuple(self._infeasible_decoders()))
        is_back, first = best.kept[0][0][0], best.kept[0][1].candidate(self._request)
        assert first.estimate is not None
        choice = self._plainest((is_back, latest_tie(first.estimate)))
        others = {rank: parts for rank, parts in best.kept if rank != choice[0]}
        if choice[1].prefill:
            alternatives = Best(1 + NUM_ALTERNATIVES)
            self._visit_remote(choice[1].decode, alternatives)
            others |= {rank: parts for rank, parts in alternatives.kept if rank != choice[0]}
        ordered = [choice[1], *(others[rank] for rank in sorted(others))]
        candidates = [parts.candidate(self._request) for parts in ordered]
        num_left_out = self._num_pairs() - len(candidates)
        candidates += self._infeasible(choice[1].decode.node)
        return Decision(tuple(candidates), num_left_out=max(0, num_left_out - len(candidates) + len(ordered)))

    def _num_pairs(self) -> int:
        """Return how many candidates there are, without pulls."""
        num_own = sum(1 for floor in self._decoders if floor.compute.node.can_prefill)
        return len(self._decoders) * (1 + len(self._prefillers_seen)) - num_own

    def _plainest(self, limit: tuple[bool, float]) -> Offer:
        """Return the candidate of least `Candidate.plainness` among those that are as good as the best one."""
        able = [entry for entry in self._entries if entry[:2] <= limit]
        able.sort(key=lambda entry: (entry[4].compute.node.last_used, entry[4].compute.node.node_id))
        kinds = [[self._decode(entry[4].compute.node) for entry in able if entry[2] == kind] for kind in range(3)]
        offers = chain(
            map(self._local, kinds[_LOCAL]),
            self._plainest_remotes(kinds[_REMOTE], limit),
            filter(None, map(self._pulling, kinds[_PULL])),
        )
        return next(offer for offer in offers if offer[0][:2] <= limit)

    def _plainest_remotes(self, decoders: Sequence[DecodeTerms], limit: tuple[bool, float]) -> Iterator[Offer]:
        """Give the remote candidates that may be within a limit by when their nodes were used, then by ids."""
        by_use = sorted(
            self._prefillers, key=lambda prefiller: (prefiller[4].node.last_used, prefiller[4].node.node_id)
        )
        for _, equal_decoders in groupby(decoders, key=lambda decode: decode.node.last_used):
            group = list(equal_decoders)
            for _, equal_prefillers in groupby(by_use, key=lambda prefiller: prefiller[4].node.last_used):
                prefillers = list(equal_prefillers)
                for decode in group:
                    yield from self._remotes(decode, prefillers, lambda: limit)

    def _infeasible(self, chosen: NodeSnapshot) -> Iterator[Candidate]:
        """Return why some nodes cannot run the request, as the candidates that they would be part of."""
        if self._num_feasible == len(self._decoders) and len(self._prefillers) == len(self._prefillers_seen):
            return iter(())
        able, request = {floor.node.node_id for *_, floor in self._prefillers}, self._request
        prefillers = (
            Candidate(chosen.node_id, floor.node.node_id, infeasible_reason=reason)
            for floor in self._prefillers_seen
            if floor.node.node_id not in able
            and (reason := infeasible_reason(floor.node, request, request.num_prompt_tokens))
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

    def _sorted_prefillers(self, prefillers: Collection[ComputeFloor]) -> list[_Prefiller]:
        """Return the floors of the nodes that can take the prompt, least first."""
        request = self._request
        num_tokens, num_pairs = request.num_prompt_tokens, request.num_prompt_tokens**2
        excluded, cached = request.excluded_node_ids, request.cached_tokens.keys() | request.lower_tokens.keys()
        now_seconds = self._snapshot.now_seconds
        floors: list[_Prefiller] = []
        for index, floor in enumerate(prefillers):
            node, max_tokens, of_pass, of_token, of_pair, num_stalled, _ = floor
            if num_tokens > max_tokens or (excluded and node.node_id in excluded):
                continue
            if cached and node.node_id in cached:
                own = floor.seconds(self._most_cached(node), num_tokens)
            else:
                own = of_pass + num_tokens * of_token + num_pairs * of_pair
            queue = floor.queue_seconds(own, now_seconds) if node.queue.seconds else 0.0
            stall = floor.stall_seconds(own, num_tokens) if num_stalled else 0.0
            floors.append((queue + own + stall, queue, stall, index, floor))
        floors.sort()
        return floors

    def _most_cached(self, node: NodeSnapshot) -> int:
        """Return the positions that a node need not compute at most, with all that it could bring back."""
        request = self._request
        lower = request.lower_tokens.get(node.node_id)
        num_tokens = request.cached_tokens.get(node.node_id, 0) + (lower.num_tokens if lower else 0)
        return min(num_tokens, request.num_prompt_tokens - 1)

    def _floors(self) -> list[_Entry]:
        """Return the floors of every decode node that can take the request: local, with a pull, and remote."""
        request, snapshot = self._request, self._snapshot
        num_tokens, excluded, cached_tokens = (
            request.num_prompt_tokens,
            request.excluded_node_ids,
            request.cached_tokens,
        )
        pullable = 0
        if snapshot.holder_ids and not request.needs_local_prefill:
            pullable = max(map(request.pullable_from, snapshot.holder_ids))
            pullable = min(pullable, num_tokens - 1)
        least_start = self._prefillers[0][0] if self._prefillers else math.inf
        locals_back, remotes_back = self._are_locals_back, self._are_remotes_back
        floors: list[_Entry] = []
        last_context, expected, total_tokens = 0, 0.0, 0
        for index, floor in enumerate(self._decoders):
            compute, max_context, max_held = floor[:3]
            if num_tokens >= max_context:
                continue
            node = compute.node
            if max_context != last_context:
                last_context = max_context
                expected = expected_output_tokens(request, node, snapshot.expected_output_tokens)
                total_tokens = num_tokens + math.ceil(expected)
            if total_tokens > max_held or node.node_id in excluded:
                continue
            cached = most_cached = 0
            if node.node_id in cached_tokens or node.node_id in request.lower_tokens:
                cached, most_cached = request.cached_on(node), self._most_cached(node)
            self._num_feasible += 1
            room, decode = floor.seconds(num_tokens, cached, expected, snapshot.now_seconds)
            seconds = compute.seconds(most_cached, num_tokens)
            queue = max(room, compute.queue_seconds(seconds, snapshot.now_seconds)) if node.queue.seconds else room
            floors.append(
                (
                    locals_back,
                    (queue + seconds + compute.stall_seconds(seconds, num_tokens) + decode) * SLACK,
                    _LOCAL,
                    index,
                    floor,
                )
            )
            if pullable > cached:
                seconds = compute.seconds(pullable, num_tokens)
                queue = max(room, compute.queue_seconds(seconds, snapshot.now_seconds)) if node.queue.seconds else room
                floors.append(
                    (
                        locals_back,
                        (queue + seconds + compute.stall_seconds(seconds, num_tokens) + decode) * SLACK,
                        _PULL,
                        index,
                        floor,
                    )
                )
            if least_start < math.inf:
                seconds = ((room if room > least_start else least_start) + decode) * SLACK
                floors.append((remotes_back, seconds, _REMOTE, index, floor))
        return floors

    def _visit(self, kind: int, floor: DecodeFloor, best: Best) -> None:
        """Price a decode node's candidates of a kind, as far as they can be among the best."""
        decode = self._decode(floor.compute.node)
        if kind == _REMOTE:
            self._visit_remote(decode, best)
            return
        offer = self._pulling(decode) if kind == _PULL else self._local(decode)
        if offer is not None:
            best.offer(offer)

    def _visit_remote(self, decode: DecodeTerms, best: Best) -> None:
        for offer in self._remotes(decode, self._prefillers, lambda: best.limit):
            best.offer(offer)

    def _local(self, decode: DecodeTerms, pull: Pull | None = None) -> Offer:
        """Return the candidate that computes and decodes on one node."""
        terms = local_terms(self._request, decode, pull)
        total = decode.total_seconds(terms.start_seconds, terms.imposed_seconds)
        return (self._are_locals_back, total, False, pull is not None, decode.node.node_id, ""), Parts(
            decode, pull=pull
        )

    def _pulling(self, decode: DecodeTerms) -> Offer | None:
        """Return the candidate that pulls the prompt's beginning; None: nobody has what the node lacks."""
        if self._holders is None:
            holders = self._snapshot.holder_ids
            nodes = tuple(self._current(node) for node in self._snapshot.nodes if node.node_id in holders)
            self._holders = replace(self._snapshot, nodes=nodes)
        pull = best_pull(self._holders, self._request, decode.node)
        return self._local(decode, pull) if pull else None

    def _remotes(
        self, decode: DecodeTerms, prefillers: Sequence[_Prefiller], get_limit: Callable[[], tuple[bool, float]]
    ) -> Iterator[Offer]:
        """Give the remote candidates of a decode node whose floors do not exceed a limit, which may fall meanwhile."""
        request, snapshot, is_back = self._request, self._snapshot, self._are_remotes_back
        node, room, restore = decode.node, decode.room_seconds, decode.match.restore.seconds
        decode_id, token_bytes = node.node_id, node.shape.kv_bytes_per_token
        after = decode.total_seconds(0.0, decode.slowdown_seconds)
        num_sent = request.num_prompt_tokens - decode.match.num_tokens
        policy = snapshot.wire_policy
        is_lossless = policy.keys == AUTO == policy.values and policy.allowed_loss <= 0
        landing_rate = node.load.landing_bytes_per_second
        least_sent = num_sent * token_bytes / landing_rate if landing_rate else 0.0
        is_ascending = prefillers is self._prefillers
        for ready, queue, stall, _, compute in prefillers:
            limit = get_limit()
            if (is_back, (max(room, restore + ready) + after) * SLACK) > limit:
                if is_ascending:
                    break
                continue
            prefill_id = compute.node.node_id
            if prefill_id == decode_id:
                continue
            link = snapshot.link(prefill_id, decode_id)
            if link.mismatch:
                continue
            sent = least_sent
            if is_lossless:
                wire_bytes = link.wires[0].key_bytes + link.wires[0].value_bytes if link.wires else token_bytes
                sent = max(sent, num_sent * wire_bytes / link.bytes_per_second)
            arrived = restore + max(ready - stall, queue + sent) + link.round_trip_seconds + FRAME_OVERHEAD_SECONDS
            if (is_back, (max(room, arrived) + after + stall) * SLACK) <= limit:
                yield self._remote(decode, compute.node, link)

    def _remote(self, decode: DecodeTerms, prefiller: NodeSnapshot, link: Link) -> Offer:
        """Return the candidate that computes on one node and decodes on another. Each is priced once."""
        pair = (decode.node.node_id, prefiller.node_id)
        offer = self._priced.get(pair)
        if offer is None:
            prefill = self._prefill_terms.get(prefiller.node_id)
            if prefill is None:
                prefill = prefill_terms(self._request, self._current(prefiller))
                self._prefill_terms[prefiller.node_id] = prefill
            terms = remote_terms(self._request, decode, prefill, link, self._snapshot.wire_policy)
            total = decode.total_seconds(terms.start_seconds, terms.imposed_seconds)
            rank = (self._are_remotes_back, total, True, False, *pair)
            offer = self._priced[pair] = (rank, Parts(decode, prefill, link, terms))
        return offer

    def _decode(self, node: NodeSnapshot) -> DecodeTerms:
        decode = self._decode_terms.get(node.node_id)
        if decode is None:
            expected = expected_output_tokens(self._request, node, self._snapshot.expected_output_tokens)
            decode = self._decode_terms[node.node_id] = decode_terms(self._request, self._current(node), expected)
        return decode

    def _current(self, node: NodeSnapshot) -> NodeSnapshot:
        current = self._nodes.get(node.node_id)
        if current is None:
            current = self._nodes[node.node_id] = self._snapshot.current(node)
        return current
