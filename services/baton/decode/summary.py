"""The end of a generation as messages: usage, and what was measured."""

from __future__ import annotations

from baton.decode.kv_stream.reception import Reception
from baton.engine.events import Ended
from baton.node.sensors.monitor import NodeMonitor
from baton.telemetry.metrics import Metrics, Side
from baton.v1 import decode_service_pb2 as messages
from baton.v1 import generation_pb2
from baton.wire.quantities import duration_from_seconds, seconds_from_duration

_REASONS = {"stop": generation_pb2.FINISH_REASON_STOP, "length": generation_pb2.FINISH_REASON_LENGTH}


def local_summary(
    request: messages.DecodeServiceGenerateRequest, ended: Ended, node_id: str
) -> generation_pb2.PlacementSummary:
    """Return what happened to a request, as if nothing of it had come from another node."""
    return generation_pb2.PlacementSummary(
        decode_node_id=node_id,
        prefill_node_id=node_id,
        placement_id=request.placement.placement_id,
        decode_cached_token_count=ended.num_cached_tokens,
        queue_duration=duration_from_seconds(ended.queue_seconds),
        prefill_duration=duration_from_seconds(ended.prefill_seconds),
        decode_duration=duration_from_seconds(ended.decode_seconds),
        preemption_count=ended.num_preemptions,
        completion_token_count=ended.num_output_tokens - len(request.output_token_ids),
    )


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


def count_prompt(
    metrics: Metrics, ended: Ended, summary: generation_pb2.PlacementSummary, reception: Reception | None
) -> None:
    """Count where the prompt of a request that has just ended was computed, and what its KV's way took."""
    for _ in range(ended.num_preemptions):
        metrics.add_preemption()
    if summary.prefill_node_id != summary.decode_node_id and reception is not None:
        metrics.add_kv_transfer(
            summary.kv_byte_count,
            reception.transport,
            transfer_seconds=reception.clock.busy_seconds,
            exposed_seconds=reception.clock.exposed_seconds,
        )
        side: Side = "prefill"
        num_cached = min(summary.prefill_cached_token_count, ended.num_prompt_tokens)
    else:
        side = "decode"
        num_received = summary.kv_kept_token_count + summary.pulled_token_count
        num_cached = min(ended.num_cached_tokens + num_received, ended.num_prompt_tokens)
    num_computed = max(0, ended.num_prompt_tokens - num_cached - ended.num_shared_tokens)
    metrics.add_prompt(side, num_cached_tokens=num_cached, num_computed_tokens=num_computed)
    metrics.add_shared_prompt(ended.num_shared_tokens)


def finished_message(
    ended: Ended,
    summary: generation_pb2.PlacementSummary,
    request: messages.DecodeServiceGenerateRequest,
    reception: Reception | None,
) -> messages.Finished:
    """Return the end of a generation, with its KV's frames in time if they were wanted."""
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
    if reception is not None and reception.timeline is not None:
        finished.summary.kv_timeline.CopyFrom(reception.timeline.to_proto(reception.clock.computed))
    return finished
