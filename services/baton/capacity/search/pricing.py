"""Prices the candidates of one request: of each node and each pair the terms are computed once."""

from __future__ import annotations

import bisect
import math
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from baton.capacity.placement import Candidate, PrefillPolicy, local_candidate, remote_candidate
from baton.capacity.prefix_reuse import Pull, best_pull
from baton.capacity.snapshot import ClusterSnapshot, Link, NodeSnapshot, PlacementRequest, expected_output_tokens
from baton.capacity.terms import DecodeTerms, PrefillTerms, RemoteTerms, decode_terms, local_terms, prefill_terms

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
        self.num_kept = num_kept
        self.kept: list[Offer] = []
        self.limit = limit
        """No candidate whose floor is beyond this can get among them."""

    def offer(self, offer: Offer) -> None:
        """Take a candidate if it is one of the best."""
        if len(self.kept) == self.num_kept:
            if offer[0] >= self.kept[-1][0]:
                return
            self.kept.pop()
        bisect.insort(self.kept, offer, key=itemgetter(0))
        if len(self.kept) == self.num_kept:
            self.limit = self.kept[-1][0][:2]


class Pricing:
    """Prices candidates by the terms of `baton.capacity.terms`, of nodes as they are at the moment."""

    def __init__(self, snapshot: ClusterSnapshot, request: PlacementRequest, policy: PrefillPolicy) -> None:
        self._snapshot, self._request = snapshot, request
        self._are_locals_back, self.are_remotes_back = policy == "remote", policy == "local"
        self._decode_terms: dict[str, DecodeTerms] = {}
        self._prefill_terms: dict[str, PrefillTerms] = {}
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

    def _holders(self) -> ClusterSnapshot:
        """Return the nodes from whose prefix caches something may be pulled, as a cluster."""
        if self._holders_only is None:
            ids = self._snapshot.holder_ids
            nodes = tuple(self._snapshot.current(node) for node in self._snapshot.nodes if node.node_id in ids)
            self._holders_only = replace(self._snapshot, nodes=nodes)
        return self._holders_only

    def prefill(self, node: NodeSnapshot) -> PrefillTerms:
        """Return the terms of a prefill node."""
        prefill = self._prefill_terms.get(node.node_id)
        if prefill is None:
            expected = expected_output_tokens(self._request, node, self._snapshot.expected_output_tokens)
            prefill = prefill_terms(self._request, self._snapshot.current(node), expected)
            self._prefill_terms[node.node_id] = prefill
        return prefill

    def decode(self, node: NodeSnapshot) -> DecodeTerms:
        """Return the terms of a decode node."""
        decode = self._decode_terms.get(node.node_id)
        if decode is None:
            expected = expected_output_tokens(self._request, node, self._snapshot.expected_output_tokens)
            decode = decode_terms(self._request, self._snapshot.current(node), expected)
            self._decode_terms[node.node_id] = decode
        return decode
