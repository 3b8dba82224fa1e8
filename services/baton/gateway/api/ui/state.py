"""The cluster and its last requests as the page /ui draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from google.protobuf.json_format import MessageToDict

from baton.gateway.access.tenants import Places
from baton.gateway.generation.observation import CANCELLED, JournalEntry
from baton.gateway.models.catalog import ListedModel
from baton.internal.v1.router_service_pb2 import NodeState
from baton.wire.node_roles import role_word
from baton.wire.quantities import seconds_from_duration, terms_beside

_PLACE = attrgetter("layer_begin", "layer_count", "token_begin", "token_count", "byte_count")
"""What a frame holds."""


def state_document(
    models: Sequence[tuple[ListedModel, Places]],
    version: str,
    states: Sequence[NodeState],
    entries: Sequence[JournalEntry],
    now_seconds: float,
    *,
    name: str = "",
) -> Mapping[str, Any]:
    """Return all that the page shows. Times are seconds, rates bytes/s and FLOP/s.

    `models` have their places. `entries` has the latest first. `name` is the generation whose
    frames are wanted, those of all would be megabytes; empty or forgotten: the latest that has any.
    """
    timed = [entry for entry in entries if entry.result and entry.result.summary.HasField("kv_timeline")]
    shown = next((entry for entry in timed if entry.name == name), timed[0] if timed else None)
    return {
        "models": [
            {"name": row.name, "root": row.root, "state": row.status.stage, "progress": row.status.progress}
            | {"cause": row.status.cause, "context_tokens": row.max_context_tokens}
            | {"requests": places.num_taken, "max_requests": places.num_places}
            for row, places in models
        ],
        "version": version,
        "nodes": [_node(state) for state in states],
        "links": [
            {
                "from": link.from_node_id,
                "to": state.node.node_id,
                "bytes_per_second": link.bytes_per_second,
                "round_trip_seconds": seconds_from_duration(link.round_trip),
            }
            for state in states
            for link in state.links
        ],
        "requests": [_request(entry, now_seconds) for entry in entries],
        "timeline": _timeline(shown) if shown is not None else None,
    }


def _node(state: NodeState) -> Mapping[str, Any]:
    node, load = state.node, state.load
    return {
        "id": node.node_id,
        "role": role_word(node.role),
        "model": node.model_id,
        "engine": node.engine,
        "device": node.device,
        "prefill_flops": node.profile.prefill_flops,
        "decode_bytes_per_second": node.profile.decode_bytes_per_second,
        "profile_source": node.profile.source,
        "pool_tokens": node.block_count * node.block_token_count,
        "used_share": 1 - load.free_block_count / node.block_count
        if state.HasField("load") and node.block_count
        else 0,
        "running": load.running_request_count,
        "waiting": load.waiting_request_count,
        "pending_prompt_tokens": load.pending_prompt_token_count,
        "landing_bytes": load.landing_byte_count,
        "trouble": state.unusable_reason or ("draining" if load.is_draining else ""),
        "is_sparing_memory": load.is_sparing_memory,
        "report_age_seconds": seconds_from_duration(state.report_age),
        "system": MessageToDict(load.system, preserving_proto_field_name=True),
    }


def _request(entry: JournalEntry, now_seconds: float) -> Mapping[str, Any]:
    placement, result = entry.placement, entry.result
    first, ended = entry.first_token_seconds, entry.ended_seconds
    summary = result.summary if result else None
    pairs = terms_beside(placement.estimate, summary) if placement else ()
    document: dict[str, Any] = {
        "name": entry.name,
        "route": entry.route,
        "began_at": entry.began_at,
        "state": _state(entry),
        "error": entry.error,
        "prompt_tokens": entry.num_prompt_tokens,
        "output_tokens": result.num_completion_tokens if result else entry.num_output_tokens,
        "cached_tokens": result.num_cached_tokens if result else None,
        "first_token_seconds": first - entry.arrival_seconds if first is not None else None,
        "seconds": (ended if ended is not None else now_seconds) - entry.arrival_seconds,
        "decode_node": placement.decode_node_id if placement else "",
        "prefill_node": (placement.prefill_node_id or placement.decode_node_id) if placement else "",
        "pull_node": placement.prefix_pull.node_id if placement else "",
        "terms": [pair._asdict() for pair in pairs],
    }
    if summary is not None:
        document["decode_node"] = summary.decode_node_id or document["decode_node"]
        document["prefill_node"] = summary.prefill_node_id or document["prefill_node"]
        document["pull_node"] = summary.pull_node_id
        document["fallback_reason"] = summary.fallback_reason
        document["kv_bytes"] = summary.kv_byte_count
        document["pulled_tokens"] = summary.pulled_token_count
        document["preemptions"] = summary.preemption_count
    return document


def _state(entry: JournalEntry) -> str:
    if entry.ended_seconds is not None:
        return "cancelled" if entry.error == CANCELLED else "failed" if entry.error else "done"
    if entry.first_token_seconds is not None:
        return "decoding"
    return "prefilling" if entry.placement is not None else "placing"


def _timeline(entry: JournalEntry) -> Mapping[str, Any]:
    assert entry.result is not None
    timeline = entry.result.summary.kv_timeline
    return {
        "name": entry.name,
        "computed": timeline.computed_micros / 1e6,
        "frames": [[*_PLACE(frame), frame.ready_micros / 1e6, frame.arrived_micros / 1e6] for frame in timeline.frames],
    }
