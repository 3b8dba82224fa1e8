"""The cluster and its last requests as the page /ui draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict

from baton.gateway.generation.observation import JournalEntry
from baton.internal.v1.router_service_pb2 import NodeState
from baton.v1.generation_pb2 import KvTimeline
from baton.wire.node_roles import role_word
from baton.wire.quantities import seconds_from_duration, terms_beside


def state_document(
    model: str, version: str, states: Sequence[NodeState], entries: Sequence[JournalEntry], now_seconds: float
) -> Mapping[str, Any]:
    """Return all that the page shows. Times are seconds, rates bytes/s and FLOP/s.

    Args:
        model: Served name.
        version: Baton's.
        states: Nodes as the router knows them.
        entries: Generations, the latest first.
        now_seconds: The event loop's time.
    """
    return {
        "model": model,
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
    }


def _node(state: NodeState) -> Mapping[str, Any]:
    node, load = state.node, state.load
    return {
        "id": node.node_id,
        "role": role_word(node.role),
        "engine": node.engine,
        "device": node.device,
        "profile": MessageToDict(node.profile, preserving_proto_field_name=True),
        "block_count": node.block_count,
        "block_count_cause": node.block_count_cause,
        "free_block_count": load.free_block_count,
        "running": load.running_request_count,
        "waiting": load.waiting_request_count,
        "step_count": load.step_count,
        "is_draining": load.is_draining,
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
        "terms": [pair._asdict() for pair in pairs],
    }
    if summary is not None:
        document["fallback_reason"] = summary.fallback_reason
        document["kv_bytes"] = summary.kv_byte_count
        document["pull_node"] = summary.pull_node_id
        document["pulled_tokens"] = summary.pulled_token_count
        document["timeline"] = _timeline(summary.kv_timeline) if summary.HasField("kv_timeline") else None
    return document


def _state(entry: JournalEntry) -> str:
    if entry.ended_seconds is not None:
        return "failed" if entry.error else "done"
    if entry.first_token_seconds is not None:
        return "decoding"
    return "prefilling" if entry.placement is not None else "placing"


def _timeline(timeline: KvTimeline) -> Mapping[str, Any]:
    return {
        "computed": timeline.computed_micros / 1e6,
        "frames": [
            [
                frame.layer_begin,
                frame.layer_count,
                frame.token_begin,
                frame.token_count,
                frame.byte_count,
                frame.ready_micros / 1e6,
                frame.arrived_micros / 1e6,
            ]
            for frame in timeline.frames
        ],
    }
