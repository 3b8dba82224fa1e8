"""Prices the candidates of one request: of each node and each pair the terms are computed once."""

from __future__ import annotations

import bisect
import math
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from baton.capacity import cost
from baton.capacity.placement import Candidate, PrefillPolicy, local_candidate, remote_candidate
from baton.capacity.prefix_reuse import Pull, best_pull
from baton.capacity.search.floors import SLACK
from baton.capacity.snapshot import ClusterSnapshot, Link, NodeSnapshot, PlacementRequest, expected_output_tokens
from baton.capacity.terms import (
    DecodeTerms,
    LandingTerms,
    PrefillTerms,
    RemoteTerms,
    decode_terms,
    landing_terms,
    local_terms,
    prefill_terms,
    queue_seconds,
    remote_terms,
    stream_terms,
)

Rank: TypeAlias = tuple[bool, float, bool, bool, str, str]
"""Whether the policy puts it back, and `Candidate.rank`."""


Limit: TypeAlias = tuple[bool, float]
"""The first two of a `Rank`."""


class Parts(NamedTuple):
    """What a candidate is made of."""

    decode: DecodeTerms
    prefill: PrefillTerms | None = None
    link: Link | None = None
    terms: RemoteTerms | None = None
    pull: Pull | None = None

    def candidate(self, request: PlacementRequest) -> Candidate:
        """Return the candidate."""
        if self.prefill and self.link and self.terms:
            return remote_candidate(self.decode, self.prefill, self.link, self.terms)
        return local_candidate(request, self.decode, self.pull)


Offer: TypeAlias = tuple[Rank, Parts]
"""A priced candidate."""


class Best:
    """The first few candidates in the order of `place`, of those offered within a limit."""

    def __init__(self, num_kept: int, limit: Limit = (True, math.inf)) -> None:
        self._num_kept = num_kept
        self.kept: list[Offer] = []
        self.limit = limit
        """No candidate whose floor is beyond this can get among them."""

    def excludes(self, least: Rank) -> bool:
        """Return whether no candidate of this rank or a later one can get among them."""
        return len(self.kept) == self._num_kept and least > self.kept[-1][0]

    def offer(self, offer: Offer) -> None:
        """Take a candidate if it is one of the best."""
        if len(self.kept) == self._num_kept:
            if offer[0] >= self.kept[-1][0]:
                return
            self.kept.pop()
        bisect.insort(self.kept, offer, key=itemgetter(0))
        if len(self.kept) == self._num_kept:
            self.limit = self.kept[-1][0][:2]


class Pricing:
    """Prices candidates by the terms of `baton.capacity.terms`, of nodes as they are at the moment."""

    def __init__(self, snapshot: ClusterSnapshot, request: PlacementRequest, policy: PrefillPolicy) -> None:
        self._snapshot, self._request = snapshot, request
        self._are_locals_back, self._are_remotes_back = policy == "remote", policy == "local"
        self._decode_terms: dict[str, DecodeTerms] = {}
        self._prefill_terms: dict[str, PrefillTerms] = {}
        self._landings: dict[tuple[str, str], LandingTerms] = {}
        self._priced: dict[tuple[str, str], Offer] = {}
        self._nodes: dict[str, NodeSnapshot] = {}
        self._holders_only: ClusterSnapshot | None = None

    def local(self, decode: DecodeTerms, pull: Pull | None = None) -> Offer:
        """Return the candidate that computes and decodes on one node."""
        terms = local_terms(self._request, decode, pull)
        total = decode.total_seconds(terms.start_seconds, terms.imposed_seconds)
        rank = (self._are_locals_back, total, False, pull is not None, decode.node.node_id, "")
        return rank, Parts(decode, pull=pull)

    def pulling(self, decode: DecodeTerms) -> Offer | None:
        """Return the candidate that pulls the prompt's beginning; None: nobody has what the node lacks."""
        pull = best_pull(self._holders(), self._request, decode.node)
        return self.local(decode, pull) if pull else None

    def pull_floor(self, decode: DecodeTerms) -> float:
        """Return the floor of the candidate that pulls the prompt's beginning, whoever has it; infinity: nobody."""
        node, request, room = decode.node, self._request, decode.room_seconds
        floor = math.inf
        for source in self._holders().nodes:
            end = min(request.pullable_from(source.node_id), request.num_prompt_tokens - 1)
            num_pulled = end // node.block_tokens * node.block_tokens - decode.match.num_tokens
            link = self._snapshot.link(source.node_id, node.node_id)
            if num_pulled <= 0 or link.mismatch or source is node:
                continue
            own = cost.prefill_seconds(node.shape, node.profile, end, request.num_prompt_tokens)
            sent = num_pulled * node.shape.kv_bytes_per_token / link.bytes_per_second + link.round_trip_seconds
            floor = min(floor, own + max(room + sent, queue_seconds(node, own)))
        return decode.total_seconds(floor, decode.slowdown_seconds)

    def _holders(self) -> ClusterSnapshot:
        """Return the nodes from whose prefix caches something may be pulled, as a cluster."""
        if self._holders_only is None:
            ids = self._snapshot.holder_ids
            nodes = tuple(self._current(node) for node in self._snapshot.nodes if node.node_id in ids)
            self._holders_only = replace(self._snapshot, nodes=nodes)
        return self._holders_only

    def remote(self, decode: DecodeTerms, prefiller: NodeSnapshot, link: Link, limit: Limit) -> Offer | None:
        """Return the candidate that computes on one node and decodes on another; None: it is beyond the limit.

        Each is priced once, and its frames are not planned where its computation or its transfer alone take too long.
        """
        pair = (decode.node.node_id, prefiller.node_id)
        offer = self._priced.get(pair)
        if offer is not None:
            return offer
        prefill = self._prefill_terms.get(prefiller.node_id)
        if prefill is None:
            prefill = prefill_terms(self._request, self._current(prefiller))
            self._prefill_terms[prefiller.node_id] = prefill
        is_back = self._are_remotes_back
        after = decode.total_seconds(decode.join_seconds, decode.slowdown_seconds + prefill.imposed_seconds)
        start = prefill.queue_seconds + decode.match.restore.seconds + prefill.prefill_seconds + link.round_trip_seconds
        if (is_back, (start + after) * SLACK) > limit:
            return None
        landing = self._landings.get(pair)
        if landing is None:
            landing = self._landings[pair] = landing_terms(self._request, decode, prefill)
        _, begin, computing = landing.window
        start = begin + max(computing, landing.landing_seconds) + link.round_trip_seconds
        if (is_back, (start + after) * SLACK) > limit:
            return None
        stream = stream_terms(decode, prefill, landing, link, self._snapshot.wire_policy)
        start = begin + max(computing, stream.send_seconds) + link.round_trip_seconds
        if (is_back, (start + after) * SLACK) > limit:
            return None
        terms = remote_terms(decode, prefill, link, stream)
        total = decode.total_seconds(terms.start_seconds, terms.imposed_seconds)
        offer = self._priced[pair] = ((is_back, total, True, False, *pair), Parts(decode, prefill, link, terms))
        return offer

    def decode(self, node: NodeSnapshot) -> DecodeTerms:
        """Return the terms of a decode node."""
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
