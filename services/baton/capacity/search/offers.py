"""Candidates that a search has priced, and the few of them that it keeps."""

from __future__ import annotations

import bisect
import math
from typing import NamedTuple, TypeAlias

from baton.capacity.placement import Candidate, local_candidate, remote_candidate
from baton.capacity.prefix_reuse import Pull
from baton.capacity.snapshot import Link, PlacementRequest
from baton.capacity.terms import DecodeTerms, PrefillTerms, RemoteTerms

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
        bisect.insort(self.kept, offer, key=_rank_of)
        if len(self.kept) == self._num_kept:
            self.limit = self.kept[-1][0][:2]


def _rank_of(kept: Offer) -> Rank:
    return kept[0]
