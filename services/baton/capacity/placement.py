"""Where a request should run: every decode node, alone or with other nodes, compared in seconds. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from baton.capacity import cost
from baton.capacity.cost import CostEstimate
from baton.capacity.kv_transfer import FramePlan, WireEstimate, WirePolicy, cache_option, choose_wire, plan_frames
from baton.capacity.prefix_reuse import Pull, best_pull, match_prefix
from baton.capacity.snapshot import (
    ClusterSnapshot,
    Link,
    NodePair,
    NodeSnapshot,
    PlacementRequest,
    blocks_for,
    expected_output_tokens,
    infeasible_reason,
    room_seconds,
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a request; it has either an estimate or a reason why it cannot."""

    decode_node_id: str
    """Node that would decode."""
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
    """Prompt tokens that would come from there."""
    chunk_tokens: int = 0
    """Positions that the prefill node computes in one pass at most; 0: it decides."""
    decode_restored_tokens: int = 0
    """How many of `decode_cached_tokens` the decode node brings back to its device from host memory or disk."""
    prefill_restored_tokens: int = 0
    """How many of `prefill_cached_tokens` the prefill node brings back."""

    @property
    def is_local(self) -> bool:
        """Return whether the decode node computes the prompt itself."""
        return not self.prefill_node_id

    @property
    def rank(self) -> tuple[float, bool, bool, str, str]:
        """Return the order of preference: least total, local before remote, then by ids; the infeasible come last."""
        total = self.estimate.total_seconds if self.estimate else float("inf")
        return (total, not self.is_local, bool(self.pull_node_id), self.decode_node_id, self.prefill_node_id)


PrefillPolicy = Literal["cheapest", "local", "remote"]
"""Which candidates come first: the cheapest of all, or the cheapest of one kind."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of placing one request."""

    candidates: tuple[Candidate, ...]
    """Every one, in order of preference, the infeasible last."""

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
    """Estimate every candidate, or every pinned one, and order them by total seconds. O(decode nodes * prefill nodes).

    A decode node that lacks a prefix which others have is a candidate besides with whoever brings it soonest.
    A policy other than "cheapest" moves the candidates of its kind before the others, where they are feasible at all.

    Source: docs/placement.md.
    """
    decoders = [node for node in snapshot.nodes if node.role == "decode"]
    prefillers = [node for node in snapshot.nodes if node.role == "prefill"]
    candidates = [
        _candidate(snapshot, request, decoder, prefiller)
        for decoder in decoders
        for prefiller in (None, *prefillers)
        if not request.pins or NodePair(decoder.node_id, prefiller.node_id if prefiller else "") in request.pins
    ]
    candidates += [candidate for decoder in decoders if (candidate := _pulling(snapshot, request, decoder)) is not None]
    return Decision(tuple(sorted(candidates, key=lambda candidate: (_is_put_back(candidate, policy), candidate.rank))))


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
    decode = _decode_terms(request, decoder, expected)
    if prefiller is None or link is None:
        return _local(request, decoder, decode)
    return _remote(request, decoder, prefiller, link, decode, snapshot.wire_policy)


def _pulling(snapshot: ClusterSnapshot, request: PlacementRequest, decoder: NodeSnapshot) -> Candidate | None:
    """Return what it costs to copy the prompt's beginning from elsewhere; None: nobody has what the node lacks."""
    expected = expected_output_tokens(request, decoder, snapshot.expected_output_tokens)
    if infeasible_reason(decoder, request, request.num_prompt_tokens + math.ceil(expected)):
        return None  # the candidate without a pull says why
    pull = best_pull(snapshot, request, decoder)
    return _local(request, decoder, _decode_terms(request, decoder, expected), pull) if pull else None


@dataclass(frozen=True, slots=True)
class _DecodeTerms:
    """What decoding on one node costs, wherever the prompt is computed."""

    expected_output_tokens: float
    step_seconds: float
    """One step with this request in the batch."""
    slowdown_seconds: float
    """What the longer steps cost the requests already in the batch."""
    room_seconds: float
    """Until the batch and the pool have room."""


def _decode_terms(request: PlacementRequest, decoder: NodeSnapshot, expected: float) -> _DecodeTerms:
    """Waiting requests will run beside this one, so they count as running, at the new request's context."""
    load, shape, profile = decoder.load, decoder.shape, decoder.profile
    others = min(load.num_running + load.num_waiting, decoder.max_batch_size - 1)
    own_context = request.num_prompt_tokens + expected / 2
    mean_context = load.mean_context_tokens if load.num_running else own_context
    context = (others * mean_context + own_context) / (others + 1)
    step = cost.step_seconds(shape, profile, others + 1, context)
    step_without = cost.step_seconds(shape, profile, others, mean_context) if others else 0.0
    num_new_tokens = request.num_prompt_tokens + math.ceil(expected) - request.cached_on(decoder)
    return _DecodeTerms(
        expected_output_tokens=expected,
        step_seconds=step,
        slowdown_seconds=others * max(0.0, step - step_without) * expected,
        room_seconds=room_seconds(decoder, blocks_for(decoder, num_new_tokens), expected * step),
    )


def _local(
    request: PlacementRequest, decoder: NodeSnapshot, decode: _DecodeTerms, pull: Pull | None = None
) -> Candidate:
    """T_local = max(queue_d, max(room_d, read_d) + pull) + copy_d + prefill_d(c, n), and queue_d is room_d or more.

    Who runs stands still for copy and prefill.

    Interval table: [0, r) is on d's device; [r, c_d) is read from its disk, while prompts before this one are computed,
    and copied; [c_d, c) is pulled, as soon as d has room, while others are computed; [c, n) is computed on d. Without a
    pull c = c_d.
    """
    match = match_prefix(request, decoder)
    cached, restore = match.num_tokens, match.restore
    queue = max(_queue_seconds(decoder), decode.room_seconds)
    prefill = cost.prefill_seconds(
        decoder.shape, decoder.profile, pull.end if pull else cached, request.num_prompt_tokens
    )
    reading = max(0.0, restore.read_seconds - queue)
    pulling = max(0.0, max(decode.room_seconds, restore.read_seconds) + pull.seconds - queue - reading) if pull else 0.0
    start = queue + reading + restore.copy_seconds + pulling + prefill
    estimate = CostEstimate(
        queue_seconds=queue,
        prefill_seconds=prefill,
        transfer_seconds=pull.transfer_seconds if pull else 0.0,
        exposed_seconds=0.0,
        time_to_first_token_seconds=start,
        start_seconds=start,
        step_seconds=decode.step_seconds,
        expected_output_tokens=decode.expected_output_tokens,
        imposed_seconds=decode.slowdown_seconds + decoder.load.num_running * (restore.copy_seconds + prefill),
        pull_seconds=pulling,
        restore_seconds=reading + restore.copy_seconds,
    )
    candidate = Candidate(
        decoder.node_id,
        "",
        cached,
        cached,
        estimate=estimate,
        decode_restored_tokens=restore.num_tokens,
        prefill_restored_tokens=restore.num_tokens,
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


def _remote(
    request: PlacementRequest,
    decoder: NodeSnapshot,
    prefiller: NodeSnapshot,
    link: Link,
    decode: _DecodeTerms,
    policy: WirePolicy,
) -> Candidate:
    """T_remote = max(room_d, read_d + copy_d + max(queue_p, read_p) + copy_p + layer pipeline).

    The pipeline is of prefill_p(c_p, n), the way over the link, and the transfer of [c_d, n).

    Interval table: [0, c_d) is on d already, or brought back before p is called; [c_d, n) travels; [0, c_p) is on p,
    or brought back there; [c_p, n) is computed on p. The prefill node serves first come, first served, so nobody there
    waits longer: what this request waits is its own queue term.
    """
    here, there = match_prefix(request, decoder), match_prefix(request, prefiller)
    num_sent, num_computed = request.num_prompt_tokens - here.num_tokens, request.num_prompt_tokens - there.num_tokens
    queue = _queue_seconds(prefiller)
    restoring = here.restore.seconds + max(0.0, there.restore.read_seconds - queue) + there.restore.copy_seconds
    prefill = cost.prefill_seconds(prefiller.shape, prefiller.profile, there.num_tokens, request.num_prompt_tokens)
    options = link.wires or (cache_option(decoder.shape.kv_bytes_per_token),)
    rate = link.bytes_per_second
    wire = choose_wire(options, policy, num_tokens=num_sent, bytes_per_second=rate, compute_seconds=prefill)
    transfer = wire.transfer_seconds(num_sent, rate)
    frames = _plan_frames(prefiller, num_computed, compute_seconds=prefill, send_seconds=transfer)
    first_token = queue + restoring + frames.compute_seconds + link.round_trip_seconds
    estimate = CostEstimate(
        queue_seconds=queue,
        prefill_seconds=frames.compute_seconds,
        transfer_seconds=transfer,
        exposed_seconds=frames.exposed_seconds,
        time_to_first_token_seconds=first_token,
        start_seconds=max(first_token + frames.exposed_seconds, decode.room_seconds),
        step_seconds=decode.step_seconds,
        expected_output_tokens=decode.expected_output_tokens,
        imposed_seconds=decode.slowdown_seconds,
        restore_seconds=restoring,
    )
    return Candidate(
        decoder.node_id,
        prefiller.node_id,
        here.num_tokens,
        there.num_tokens,
        num_sent * wire.token_bytes,
        frames.layers_per_frame,
        estimate,
        chunk_tokens=frames.chunk_tokens,
        is_link_declared=not link.is_measured,
        wire=wire.estimate(num_sent, rate),
        decode_restored_tokens=here.restore.num_tokens,
        prefill_restored_tokens=there.restore.num_tokens,
    )


def _plan_frames(prefiller: NodeSnapshot, num_tokens: int, *, compute_seconds: float, send_seconds: float) -> FramePlan:
    """Return the pieces in which KV leaves a node while it computes so many tokens."""
    return plan_frames(
        max(1, num_tokens),
        prefiller.shape.num_layers,
        max_chunk_tokens=prefiller.max_step_tokens,
        compute_seconds=compute_seconds,
        send_seconds=send_seconds,
        least_pass_seconds=prefiller.shape.step_bytes(1, 0) / prefiller.profile.decode_bytes_per_second,
        pass_overhead_seconds=prefiller.profile.prefill_overhead_seconds,
    )


def _queue_seconds(node: NodeSnapshot) -> float:
    load = node.load
    return cost.backlog_seconds(node.shape, node.profile, load.num_pending_prompt_tokens, load.num_waiting)
