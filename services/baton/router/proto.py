"""Reports of nodes and queries between messages (node.proto, router_service.proto, generation.proto) and records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from baton.capacity.kv_transfer import CACHE
from baton.capacity.objectives import TPOT_BOUNDS_SECONDS, TTFT_BOUNDS_SECONDS, Objectives
from baton.capacity.placement import Candidate, Decision
from baton.capacity.snapshot import NodeLoad, NodePair, PlacementRequest, QueuedPrompt
from baton.errors import InvalidFieldError
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.internal.v1.kv_pb2 import TransferClaims
from baton.kv.hashing import HASH_BYTES, Adapter
from baton.kv.kv_format import KvDtype
from baton.router.admission.admitted_work import Asker
from baton.router.nodes import LinkMeasurement, LoadReport, NodeDescription, NodeTable, Outcome, Report
from baton.security.access import KEY_BYTES, LIFETIME_SECONDS, digest_of, sign_grant
from baton.security.exposure import is_loopback
from baton.v1 import generation_pb2
from baton.wire import quantities
from baton.wire.kv import abilities_from_proto, dtype_to_proto, layout_from_proto
from baton.wire.node_roles import role_from_proto, role_to_proto

MAX_PINS = 64
MAX_CONTEXT_TOKENS, MAX_WAITING = 2.0**31, 16_384
"""Most that a load report may say: a node that is not sound costs itself its placements, not others theirs."""
MAX_SESSION_BYTES = 32
MAX_TENANT_CHARACTERS = 64
MAX_TENANT_WEIGHT = 1000
MAX_ALTERNATIVES = 2
"""Prefill nodes named beside the chosen one."""
MAX_KEPT_BYTES = 4096
"""Of a summary that is kept to explain an outcome; nothing is kept of a larger one but that there was one."""
_DIGEST = re.compile(r"[0-9a-f]{32}")
_NODE_ID = re.compile(r"[a-z0-9-]{1,63}")


def reports_from_proto(message: router_service_pb2.RegisterRequest) -> Sequence[Report]:
    """Return what a node reports, several outcomes together; raise InvalidFieldError if nothing is set."""
    if message.HasField("node"):
        if len(message.transfer_key) not in (0, KEY_BYTES):
            raise InvalidFieldError("transfer_key", f"expected {KEY_BYTES} bytes, got {len(message.transfer_key)}")
        return (replace(description_from_proto(message.node), transfer_key=message.transfer_key),)
    if message.HasField("load"):
        return (load_from_proto(message.load),)
    if message.HasField("link"):
        return (link_from_proto(message.link),)
    if message.HasField("outcomes"):
        return [outcome_from_proto(outcome) for outcome in message.outcomes.outcomes]
    raise InvalidFieldError("report", "expected node, load, link or outcomes")


def description_from_proto(message: node_pb2.NodeDescription) -> NodeDescription:
    """Return the description of a node; raise InvalidFieldError for the first field with a bad value."""
    if not _NODE_ID.fullmatch(message.node_id):
        raise InvalidFieldError("node.node_id", f"expected 1 to 63 of [a-z0-9-], got {message.node_id!r}")
    role = role_from_proto(message.role, field="node.role")
    for name in ("address", "model_id"):
        if not getattr(message, name):
            raise InvalidFieldError(f"node.{name}", "must not be empty")
    for name in ("epoch", "block_count", "block_token_count", "max_batch_size"):
        if getattr(message, name) < 1:
            raise InvalidFieldError(f"node.{name}", f"must be at least 1, got {getattr(message, name)}")
    if message.max_step_token_count < 0:
        raise InvalidFieldError("node.max_step_token_count", f"must be 0 or more, got {message.max_step_token_count}")
    return NodeDescription(
        node_id=message.node_id,
        epoch=message.epoch,
        role=role,
        address=message.address,
        fast_address=message.fast_address,
        model_id=message.model_id,
        layout=layout_from_proto(message.kv_layout, field="node.kv_layout"),
        shape=quantities.shape_from_proto(message.model_shape, field="node.model_shape"),
        profile=quantities.profile_from_proto(message.profile, field="node.profile"),
        num_blocks=message.block_count,
        block_tokens=message.block_token_count,
        max_batch_size=message.max_batch_size,
        wire_abilities=abilities_from_proto(message.wire_abilities, field="node.wire_abilities"),
        serves_blocks=not message.is_cache_private,
        adapters=tuple(_adapter_from_proto(each, "node.adapters") for each in message.adapters),
        max_step_tokens=message.max_step_token_count,
        device_id=message.device_id,
        message=message,
    )


def load_from_proto(message: node_pb2.LoadReport) -> LoadReport:
    """Return a load report; negative counts, which no sound node sends, count as 0."""
    return LoadReport(
        load=NodeLoad(
            num_waiting=min(max(0, message.waiting_request_count), MAX_WAITING),
            num_running=max(0, message.running_request_count),
            num_pending_prompt_tokens=max(0, message.pending_prompt_token_count),
            num_free_blocks=max(0, message.free_block_count) - max(0, message.wanted_block_count),
            mean_context_tokens=min(quantities.measured_rate(message.mean_context_token_count), MAX_CONTEXT_TOKENS),
            queued_prompts=tuple(
                QueuedPrompt(each.placement_id, max(0, each.done_token_count), each.remaining_token_count)
                for each in message.queued_prompts
                if each.remaining_token_count > 0
            ),
            landing_bytes_per_second=quantities.measured_rate(message.landing_bytes_per_second),
            num_landing_bytes=max(0, message.landing_byte_count),
            reading_bytes_per_second=quantities.measured_rate(message.reading_bytes_per_second),
            num_decoding=max(0, message.decoding_request_count),
            num_exports=max(0, message.export_request_count),
        ),
        step_count=message.step_count,
        is_draining=message.is_draining,
        accepted_placement_ids=tuple(message.accepted_placement_ids),
        age_seconds=max(0.0, quantities.seconds_from_duration(message.age)),
        tier_rates=quantities.tier_rates_from_proto(message.tier_rates),
        is_sparing_memory=message.is_sparing_memory,
        message=message,
    )


def link_from_proto(message: node_pb2.LinkMeasurement) -> LinkMeasurement:
    """Return a link measurement; raise InvalidFieldError if the rate is not positive and finite."""
    if not 0 < message.bytes_per_second < float("inf"):
        raise InvalidFieldError("link.bytes_per_second", f"must be positive, got {message.bytes_per_second}")
    round_trip_seconds = max(0.0, quantities.seconds_from_duration(message.round_trip))
    return LinkMeasurement(message.from_node_id, message.bytes_per_second, round_trip_seconds)


def outcome_from_proto(message: generation_pb2.PlacementSummary) -> Outcome:
    """Return the outcome of a placed request."""
    return Outcome(
        placement_id=message.placement_id,
        decode_node_id=message.decode_node_id,
        prefill_node_id=message.prefill_node_id,
        prefill_cached_tokens=quantities.computing_cache(message) + message.shared_token_count,
        kv_bytes=message.kv_byte_count,
        kv_frames=message.kv_frame_count,
        **{f"{term}_seconds": seconds for term, seconds in quantities.measured_terms(message).items()},
        num_completion_tokens=max(0, message.completion_token_count),
        num_preemptions=message.preemption_count,
        fallback_reason=message.fallback_reason,
        num_breaks=len(message.kv_break_reasons),
        pull_node_id=message.pull_node_id,
        pulled_tokens=message.pulled_token_count,
        mean_batch_size=quantities.measured_rate(message.mean_batch_size),
        message=message if message.ByteSize() <= MAX_KEPT_BYTES else generation_pb2.PlacementSummary(),
    )


def placement_request(message: router_service_pb2.PlaceRequest) -> PlacementRequest:
    """Return a request to place; what caches hold is not in it. Raises InvalidFieldError naming a bad field."""
    if not 1 <= len(message.request_id) <= 128:
        raise InvalidFieldError("request_id", "must have 1 to 128 characters")
    for name in ("prompt_token_count", "max_token_count"):
        if getattr(message, name) < 1:
            raise InvalidFieldError(name, f"must be at least 1, got {getattr(message, name)}")
    if len(message.block_hashes) % HASH_BYTES:
        raise InvalidFieldError("block_hashes", f"{len(message.block_hashes)} bytes are no whole number of hashes")
    if len(message.session) > MAX_SESSION_BYTES:
        raise InvalidFieldError("session", f"expected at most {MAX_SESSION_BYTES} bytes, got {len(message.session)}")
    if len(message.pins) > MAX_PINS:
        raise InvalidFieldError("pins", f"expected at most {MAX_PINS}, got {len(message.pins)}")
    return PlacementRequest(
        num_prompt_tokens=message.prompt_token_count,
        max_tokens=message.max_token_count,
        excluded_node_ids=frozenset(message.excluded_node_ids),
        pins=frozenset(NodePair(pin.decode_node_id, pin.prefill_node_id) for pin in message.pins),
        needs_local_prefill=message.needs_local_prefill,
    )


def adapter_of(message: router_service_pb2.PlaceRequest) -> Adapter | None:
    """Return the adapter that a request to place needs, None: none; raise InvalidFieldError for a wrong one."""
    return _adapter_from_proto(message.adapter, "adapter") if message.HasField("adapter") else None


def asker_of(message: router_service_pb2.PlaceRequest) -> Asker:
    """Return on whose behalf a request to place is, and what it wants; raise InvalidFieldError if that cannot be."""
    if len(message.tenant) > MAX_TENANT_CHARACTERS:
        raise InvalidFieldError("tenant", f"expected at most {MAX_TENANT_CHARACTERS} characters")
    if not 0 <= message.tenant_weight <= MAX_TENANT_WEIGHT:
        raise InvalidFieldError("tenant_weight", f"expected 0 to {MAX_TENANT_WEIGHT}, got {message.tenant_weight}")
    objectives = Objectives(
        _objective(message, "ttft_objective", TTFT_BOUNDS_SECONDS),
        _objective(message, "tpot_objective", TPOT_BOUNDS_SECONDS),
    )
    return Asker(message.tenant, objectives, max(1, message.tenant_weight), message.model_id)


def _objective(message: router_service_pb2.PlaceRequest, name: str, bounds: tuple[float, float]) -> float:
    if not message.HasField(name):
        return 0.0
    seconds = quantities.seconds_from_duration(getattr(message, name))
    if not bounds[0] <= seconds <= bounds[1]:
        raise InvalidFieldError(name, f"expected {bounds[0]:g} to {bounds[1]:g} s, got {seconds:g}")
    return seconds


def place_response(
    placement_id: str, decoder: NodeDescription, choice: Candidate, decision: Decision, *, has_all: bool
) -> router_service_pb2.PlaceResponse:
    """Return a decision's message. `has_all`: the answer lists every candidate, not the choice alone."""
    candidates = [quantities.candidate_to_proto(each) for each in (decision.candidates if has_all else (choice,))]
    placement = router_service_pb2.Placement(
        placement_id=placement_id,
        decode_node_id=choice.decode_node_id,
        decode_address=decoder.address,
        prefill_node_id=choice.prefill_node_id,
        layers_per_frame=0 if choice.pull_node_id else choice.layers_per_frame,
        chunk_token_count=choice.chunk_tokens,
        estimate=candidates[0].estimate,
        alternatives=[_alternative_to_proto(candidate) for candidate in decision.alternatives[:MAX_ALTERNATIVES]],
        prefix_pull=_pull_to_proto(choice, decoder.block_tokens) if choice.pull_node_id else None,
    )
    _set_wire(placement, choice)
    return router_service_pb2.PlaceResponse(placement=placement, candidates=candidates)


def grant_transfers(
    placement: router_service_pb2.Placement,
    request: router_service_pb2.PlaceRequest,
    nodes: NodeTable,
    now_seconds: float,
) -> None:
    """Put a grant into a placement for each node with a key that may send KV. `now_seconds` is since 1970."""
    receiver, pull = nodes.get(placement.decode_node_id), placement.prefix_pull
    assert receiver is not None
    grants = {placement.prefill_node_id: placement.transfer}
    grants |= {each.prefill_node_id: each.transfer for each in placement.alternatives}
    if pull.node_id:
        grants = {pull.node_id: pull.transfer}
    keys = {node_id: sender.description.transfer_key for node_id in grants if (sender := nodes.get(node_id))}
    if not receiver.description.transfer_key or not any(keys.values()):
        return
    claims = TransferClaims(
        request_id=request.request_id,
        destination_node_id=placement.decode_node_id,
        salt_digest=request.salt_digest or digest_of(""),
        token_count=request.prompt_token_count,
    )
    claims.expires_at.FromMilliseconds(int(1000 * (now_seconds + LIFETIME_SECONDS)))
    if pull.node_id:
        # The last position is computed by the receiver in any case.
        num_blocks = min(pull.block_count, (request.prompt_token_count - 1) // receiver.description.block_tokens)
        claims.blocks_digest = digest_of(request.block_hashes[: num_blocks * HASH_BYTES])
    for node_id, key in keys.items():
        if key:
            claims.source_node_id = node_id
            grants[node_id].CopyFrom(sign_grant(claims, key, receiver.description.transfer_key))


def registered_to_proto(report_interval_seconds: float) -> router_service_pb2.RegisterResponse:
    """Return the first notice of a registration."""
    interval = quantities.duration_from_seconds(report_interval_seconds)
    return router_service_pb2.RegisterResponse(registered=router_service_pb2.Registered(report_interval=interval))


def peers_to_proto(nodes: tuple[NodeDescription, ...], lan_host: str = "") -> router_service_pb2.RegisterResponse:
    """Return the notice that names the nodes which a decode node may call.

    Args:
        nodes: Those.
        lan_host: For a node of another machine: where it reaches those that listen on loopback here; empty: it is here.
    """

    def reached(address: str) -> str:
        host, _, port = address.rpartition(":")
        return f"{lan_host}:{port}" if lan_host and is_loopback(host) else address

    peers = [
        router_service_pb2.Peer(
            node_id=node.node_id,
            address=reached(node.address),
            epoch=node.epoch,
            fast_address=reached(node.fast_address),
            role=role_to_proto(node.role),
        )
        for node in nodes
    ]
    return router_service_pb2.RegisterResponse(peers=router_service_pb2.Peers(nodes=peers))


def _pull_to_proto(choice: Candidate, block_tokens: int) -> router_service_pb2.PrefixPull:
    """Whole blocks are pulled, the node's own cached ones count among them."""
    return router_service_pb2.PrefixPull(
        node_id=choice.pull_node_id,
        block_count=(choice.decode_cached_tokens + choice.pulled_tokens) // block_tokens,
        layers_per_frame=choice.layers_per_frame,
    )


def _adapter_from_proto(message: node_pb2.Adapter, field: str) -> Adapter:
    if not message.name:
        raise InvalidFieldError(f"{field}.name", "must not be empty")
    if not _DIGEST.fullmatch(message.digest):
        raise InvalidFieldError(f"{field}.digest", f"expected 32 lower-case hexadecimal digits, got {message.digest!r}")
    return Adapter(message.name, message.digest)


def _alternative_to_proto(candidate: Candidate) -> router_service_pb2.PrefillAlternative:
    message = router_service_pb2.PrefillAlternative(
        prefill_node_id=candidate.prefill_node_id,
        layers_per_frame=candidate.layers_per_frame,
        chunk_token_count=candidate.chunk_tokens,
        estimate=quantities.estimate_to_proto(candidate.estimate) if candidate.estimate else None,
    )
    _set_wire(message, candidate)
    return message


def _set_wire(message: router_service_pb2.Placement | router_service_pb2.PrefillAlternative, choice: Candidate) -> None:
    if choice.wire is not None and choice.wire.key_dtype != CACHE:
        message.wire_dtype = dtype_to_proto(KvDtype(choice.wire.key_dtype))
        message.value_wire_dtype = dtype_to_proto(KvDtype(choice.wire.value_dtype))
