"""The end of a generation as messages: usage, and what was measured."""

from __future__ import annotations

from baton.decode.kv_stream.clock import Reception
from baton.decode.kv_stream.remote_prefill import RemotePrefill
from baton.engine.events import Ended
from baton.node.sensors.monitor import NodeMonitor
from baton.telemetry.metrics import Transport
from baton.v1 import decode_service_pb2 as messages
from baton.v1 import generation_pb2, kv_pb2
from baton.wire.durations import duration_from_seconds, seconds_from_duration
from baton.wire.kv import dtype_to_proto

_TRANSPORTS: dict[Transport, kv_pb2.KvTransport] = {
    "grpc": kv_pb2.KV_TRANSPORT_GRPC,
    "fast": kv_pb2.KV_TRANSPORT_FAST,
    "shared": kv_pb2.KV_TRANSPORT_SHARED,
}
_REASONS = {"stop": generation_pb2.FINISH_REASON_STOP, "length": generation_pb2.FINISH_REASON_LENGTH}


def outcome_of(
    request: messages.DecodeServiceGenerateRequest,
    ended: Ended,
    handover: RemotePrefill | None,
    *,
    decode_node_id: str,
) -> generation_pb2.PlacementSummary:
    """Return what happened to a request. Where the prefill was remote, its times are the prefill node's."""
    reception = handover.receiver.reception if handover else None
    fallback_reason = handover.fallback_reason if handover else ""
    summary = generation_pb2.PlacementSummary(
        decode_node_id=decode_node_id,
        prefill_node_id=handover.node_id if handover and not fallback_reason else decode_node_id,
        placement_id=request.placement.placement_id,
        decode_cached_token_count=ended.num_cached_tokens,
        queue_duration=duration_from_seconds(ended.queue_seconds),
        prefill_duration=duration_from_seconds(ended.prefill_seconds),
        decode_duration=duration_from_seconds(ended.decode_seconds),
        fallback_reason=fallback_reason,
        preemption_count=ended.num_preemptions,
        completion_token_count=ended.num_output_tokens - len(request.output_token_ids),
    )
    if reception is not None:
        summary.kv_byte_count = reception.num_bytes
        summary.kv_frame_count = reception.num_frames
        summary.kv_transport = _TRANSPORTS[reception.transport]
        summary.kv_transport_reason = reception.transport_reason
        if reception.wire is not None:
            summary.key_wire_dtype = dtype_to_proto(reception.wire.keys)
            summary.value_wire_dtype = dtype_to_proto(reception.wire.values)
    if handover is not None:
        summary.kv_break_reasons.extend(handover.break_reasons)
        summary.kv_resume_count = handover.num_resumes
        summary.kv_kept_token_count = handover.num_kept_tokens
    if reception is not None and not fallback_reason:
        summary.prefill_cached_token_count = reception.prefill_cached_tokens
        summary.queue_duration.CopyFrom(duration_from_seconds(ended.queue_seconds + reception.queue_seconds))
        summary.prefill_duration.CopyFrom(duration_from_seconds(reception.compute_seconds))
        summary.transfer_duration.CopyFrom(duration_from_seconds(reception.clock.busy_seconds))
        summary.exposed_duration.CopyFrom(duration_from_seconds(reception.clock.exposed_seconds))
    return summary


def measure_resources(
    summary: generation_pb2.PlacementSummary, reception: Reception | None, monitor: NodeMonitor
) -> None:
    """Add memory and energy to the summary of a request that has just ended."""
    summary.decode_peak_memory_byte_count = monitor.peak_memory_bytes()
    decode_seconds = seconds_from_duration(summary.decode_duration)
    decode_energy = monitor.energy_joules(decode_seconds)
    if summary.prefill_node_id != summary.decode_node_id and reception is not None:
        summary.prefill_peak_memory_byte_count = reception.prefill_peak_memory_bytes
        prefill_energy = reception.prefill_energy_joules
    else:
        prefill_seconds = seconds_from_duration(summary.prefill_duration)
        prefill_energy = monitor.energy_joules(decode_seconds + prefill_seconds, decode_seconds)
    if decode_energy is not None:
        summary.decode_energy_joules = decode_energy
    if prefill_energy is not None:
        summary.prefill_energy_joules = prefill_energy


def finished_message(
    ended: Ended,
    summary: generation_pb2.PlacementSummary,
    request: messages.DecodeServiceGenerateRequest,
) -> messages.Finished:
    """Return the end of a generation."""
    usage = generation_pb2.Usage(
        prompt_token_count=ended.num_prompt_tokens,
        cached_token_count=max(
            summary.decode_cached_token_count + summary.pulled_token_count, summary.prefill_cached_token_count
        ),
        completion_token_count=ended.num_output_tokens,
        seed=request.sampling.seed,
    )
    finished = messages.Finished(reason=_REASONS[ended.reason], usage=usage, summary=summary)
    if ended.stop_token_id is not None:
        finished.stop_token_id = ended.stop_token_id
    return finished
