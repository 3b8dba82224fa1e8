"""Where a request should run: every decode node, alone or with other nodes, compared in seconds. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from baton.capacity.cost import CostEstimate
from baton.capacity.kv_transfer import WireEstimate
from baton.capacity.prefix_reuse import Pull, best_pull
from baton.capacity.snapshot import (
    ClusterSnapshot,
    Link,
    NodePair,
    NodeSnapshot,
    PlacementRequest,
    expected_output_tokens,
    infeasible_reason,
)
from baton.capacity.terms import (
    DecodeTerms,
    PrefillTerms,
    RemoteTerms,
    decode_terms,
    landing_terms,
    local_terms,
    prefill_terms,
    remote_terms,
    stream_terms,
)
from baton.capacity.value_class import value_class

TIE_SHARE = 0.33
"""Part of the uncertainty of the best candidate within which others count as equal: by so much the mean of what such
estimates come to may be off."""
MAX_TIE = 0.03
"""Part of the best candidate's total beyond which no other counts as equal, however uncertain it is."""


@value_class()
class Candidate:
    """One way to run a request; it has either an estimate or a reason why it cannot."""

    decode_node_id: str
    prefill_node_id: str
    """Node that would compute the prompt; empty: the decode node itself."""
    decode_cached_tokens: int = 0
    """Prompt tokens expected in the decode node's prefix cache, wherever it keeps them."""
    prefill_cached_tokens: int = 0
    """Prompt tokens expected in the prefill node's prefix cache, wherever it keeps them."""
    kv_bytes: int = 0
    """KV bytes that it would send, scales included."""
    layers_per_frame: int = 0
    """Layers of one KV frame; 0 for a local prefill."""
    estimate: CostEstimate | None = None
    """Its terms; None if infeasible."""
    is_link_declared: bool = False
    """Whether the link's rate is the declared default, because nobody has measured it."""
    infeasible_reason: str = ""
    """Why it cannot run the request; empty if it can."""
    wire: WireEstimate | None = None
    """In what K and V would travel; None for a local prefill."""
    pull_node_id: str = ""
    """Node from whose prefix cache the prompt's beginning would come; empty: none. `kv_bytes` are then those."""
    pulled_tokens: int = 0
    chunk_tokens: int = 0
    """Positions that the prefill node computes in one pass at most; 0: it decides."""
    decode_restored_tokens: int = 0
    """How many of `decode_cached_tokens` the decode node brings back to its device from host memory or disk."""
    prefill_restored_tokens: int = 0
    """How many of `prefill_cached_tokens` the prefill node brings back."""
    last_used: tuple[int, int] = (0, 0)
    """Numbers of the placements that used the decode and the prefill node last."""

    @property
    def is_local(self) -> bool:
        """Return whether the decode node computes the prompt itself."""
        return not self.prefill_node_id

    @property
    def rank(self) -> tuple[float, bool, bool, str, str]:
        """Return the order of preference: least total, local before remote, then by ids; the infeasible come last."""
        total = self.estimate.total_seconds if self.estimate else float("inf")
        return (total, not self.is_local, bool(self.pull_node_id), self.decode_node_id, self.prefill_node_id)

    @property
    def plainness(self) -> tuple[int, tuple[int, int], str, str]:
        """Return the order among equals: local, remote, with a pull; then whose nodes were used longest ago; ids."""
        kind = 2 if self.pull_node_id else int(not self.is_local)
        return (kind, self.last_used, self.decode_node_id, self.prefill_node_id)


PrefillPolicy = Literal["cheapest", "local", "remote"]
"""Which candidates come first: the cheapest of all, or the cheapest of one kind."""


@value_class()
class Decision:
    """The outcome of placing one request."""

    candidates: tuple[Candidate, ...]
    """The choice, then the others in order of preference, the infeasible last; all but what a search left out."""
    num_left_out: int = 0
    """Candidates that a search did not price to the end, because they could not be among the best."""

    @property
    def choice(self) -> Candidate | None:
        """Return the first candidate; None if nothing is feasible."""
        return self.candidates[0] if self.candidates and self.candidates[0].estimate else None

    @property
    def runner_up(self) -> CostEstimate | None:
        """Return the terms of the best candidate that was not chosen; None if there is none."""
        return next((candidate.estimate for candidate in self.candidates[1:] if candidate.estimate), None)

    @property
    def alternatives(self) -> Sequence[Candidate]:
        """Return what else could compute the prompt for the decode node if the prefill node fails, cheapest first."""
        choice = self.choice
        if choice is None or choice.is_local:
            return ()
        return [
            candidate
            for candidate in self.candidates[1:]
            if candidate.decode_node_id == choice.decode_node_id and not candidate.is_local and candidate.estimate
        ]


def place(snapshot: ClusterSnapshot, request: PlacementRequest, *, policy: PrefillPolicy = "cheapest") -> Decision:
    """Estimate every candidate, or every pinned one, and choose. O(decode nodes * prefill nodes).

    A node that can do both never prefills remotely for itself: it computes its prompt as its local candidate. A decode
    node that lacks a prefix which others have is a candidate besides with whoever brings it soonest. A policy other
    than "cheapest" moves the candidates of its kind before the others, where they are feasible at all. Of those that
    are as good as the best of their kind, the plainest is chosen. Source: docs/placement.md.
    """
    decoders = [node for node in snapshot.nodes if node.can_decode]
    prefillers = [node for node in snapshot.nodes if node.can_prefill]
    candidates = [
        _candidate(snapshot, request, decoder, prefiller)
        for decoder in decoders
        for prefiller in (None, *(each for each in prefillers if each.node_id != decoder.node_id))
        if not request.pins or NodePair(decoder.node_id, prefiller.node_id if prefiller else "") in request.pins
    ]
    candidates += [candidate for decoder in decoders if (candidate := _pulling(snapshot, request, decoder)) is not None]
    candidates.sort(key=lambda candidate: (_is_put_back(candidate, policy), candidate.rank))
    if not candidates or candidates[0].estimate is None:
        return Decision(tuple(candidates))
    latest = latest_tie(candidates[0].estimate)
    is_first_put_back = _is_put_back(candidates[0], policy)
    equal = [
        each
        for each in candidates
        if each.estimate and each.estimate.total_seconds <= latest and _is_put_back(each, policy) == is_first_put_back
    ]
    choice = min(equal, key=lambda candidate: candidate.plainness)
    return Decision((choice, *(each for each in candidates if each is not choice)))


def latest_tie(best: CostEstimate) -> float:
    """Return the total up to which a candidate is as good as the best one."""
    total = best.total_seconds
    return total + min(TIE_SHARE * best.uncertainty_seconds, MAX_TIE * total)


def _is_put_back(candidate: Candidate, policy: PrefillPolicy) -> bool:
    is_of_kind = policy == "cheapest" or candidate.is_local == (policy == "local")
    return candidate.estimate is None or not is_of_kind


def _candidate(
    snapshot: ClusterSnapshot, request: PlacementRequest, decoder: NodeSnapshot, prefiller: NodeSnapshot | None
) -> Candidate:
    expected = expected_output_tokens(request, decoder, snapshot.expected_output_tokens)
    num_tokens = request.num_prompt_tokens + math.ceil(expected)
    reason = infeasible_reason(decoder, request, num_tokens)
    link = snapshot.link(prefiller.node_id, decoder.node_id) if prefiller else None
    if not reason and prefiller:
        reason = infeasible_reason(prefiller, request, request.num_prompt_tokens)
    if not reason and link:
        reason = link.mismatch
    if not reason and prefiller and request.needs_local_prefill:
        reason = "the prompt's log-probabilities are wanted"
    if reason:
        return Candidate(decoder.node_id, prefiller.node_id if prefiller else "", infeasible_reason=reason)
    decode = decode_terms(request, decoder, expected)
    if prefiller is None or link is None:
        return local_candidate(request, decode)
    expected = expected_output_tokens(request, prefiller, snapshot.expected_output_tokens)
    prefill = prefill_terms(request, prefiller, expected)
    stream = stream_terms(decode, prefill, landing_terms(request, decode, prefill), link, snapshot.wire_policy)
    return remote_candidate(decode, prefill, link, remote_terms(decode, prefill, link, stream))


def _pulling(snapshot: ClusterSnapshot, request: PlacementRequest, decoder: NodeSnapshot) -> Candidate | None:
    """Return what it costs to copy the prompt's beginning from elsewhere; None: nobody has what the node lacks."""
    expected = expected_output_tokens(request, decoder, snapshot.expected_output_tokens)
    if infeasible_reason(decoder, request, request.num_prompt_tokens + math.ceil(expected)):
        return None  # the candidate without a pull says why
    pull = best_pull(snapshot, request, decoder)
    return local_candidate(request, decode_terms(request, decoder, expected), pull) if pull else None


def local_candidate(request: PlacementRequest, decode: DecodeTerms, pull: Pull | None = None) -> Candidate:
    """Return the candidate that computes and decodes on one node."""
    terms, match = local_terms(request, decode, pull), decode.match
    pull_deviation = terms.pull_seconds * pull.link_spread if pull else 0.0
    candidate = Candidate(
        decode.node.node_id,
        "",
        match.num_tokens,
        match.num_tokens,
        estimate=CostEstimate(
            queue_seconds=terms.queue_seconds,
            prefill_seconds=terms.prefill_seconds,
            transfer_seconds=pull.transfer_seconds if pull else 0.0,
            exposed_seconds=0.0,
            time_to_first_token_seconds=terms.start_seconds,
            start_seconds=terms.start_seconds,
            step_seconds=decode.step_seconds,
            batch_size=decode.batch_size,
            expected_output_tokens=decode.expected_output_tokens,
            imposed_seconds=terms.imposed_seconds,
            pull_seconds=terms.pull_seconds,
            restore_seconds=terms.restore_seconds,
            uncertainty_seconds=_uncertainty_seconds(
                decode, decode.node, terms.queue_seconds, terms.prefill_seconds, pull_deviation
            ),
        ),
        decode_restored_tokens=match.restore.num_tokens,
        prefill_restored_tokens=match.restore.num_tokens,
        last_used=(decode.node.last_used, 0),
    )
    if pull is None:
        return candidate
    return replace(
        candidate,
        kv_bytes=pull.num_bytes,
        layers_per_frame=pull.layers_per_frame,
        is_link_declared=pull.is_link_declared,
        pull_node_id=pull.node_id,
        pulled_tokens=pull.num_tokens,
    )


def remote_candidate(decode: DecodeTerms, prefill: PrefillTerms, link: Link, terms: RemoteTerms) -> Candidate:
    """Return the candidate that computes on one node and decodes on another."""
    stream, frames, here, there = terms.stream, terms.frames, decode.match, prefill.match
    landing, num_sent, exposed = stream.landing, stream.landing.num_sent_tokens, frames.exposed_seconds
    queue, computing = landing.queue_seconds + landing.reading_seconds, frames.compute_seconds - landing.reading_seconds
    estimate = CostEstimate(
        queue_seconds=queue,
        prefill_seconds=computing,
        transfer_seconds=terms.transfer_seconds,
        exposed_seconds=exposed,
        join_seconds=terms.join_seconds,
        time_to_first_token_seconds=terms.first_token_seconds,
        start_seconds=terms.start_seconds,
        step_seconds=decode.step_seconds,
        batch_size=decode.batch_size,
        expected_output_tokens=decode.expected_output_tokens,
        imposed_seconds=terms.imposed_seconds,
        restore_seconds=landing.restore_seconds,
        uncertainty_seconds=_uncertainty_seconds(decode, prefill.node, queue, computing, exposed * link.spread),
    )
    return Candidate(
        decode.node.node_id,
        prefill.node.node_id,
        here.num_tokens,
        there.num_tokens,
        num_sent * stream.wire.token_bytes + stream.wire.state_bytes,
        frames.layers_per_frame,
        estimate,
        chunk_tokens=frames.chunk_tokens,
        is_link_declared=not link.is_measured,
        wire=stream.wire.estimate(num_sent, stream.bytes_per_second),
        decode_restored_tokens=here.restore.num_tokens,
        prefill_restored_tokens=there.restore.num_tokens,
        last_used=(decode.node.last_used, prefill.node.last_used),
    )


def _uncertainty_seconds(
    decode: DecodeTerms, computing: NodeSnapshot, queue: float, prefill: float, link_deviation: float
) -> float:
    """Return a total's standard deviation of independent terms, the link's or pull's among them, in seconds."""
    return math.hypot(
        queue * computing.spread.queue,
        prefill * computing.spread.prefill,
        link_deviation,
        decode.expected_output_tokens * decode.step_seconds * decode.node.spread.step,
    )
