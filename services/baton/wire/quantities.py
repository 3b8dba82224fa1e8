"""Quantities between messages and the domain: times, shapes and profiles of nodes, rates, estimates of costs."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from baton.capacity.cost import MEASURED_TERMS, TERMS, AttentionElements, CostEstimate, ModelShape, NodeProfile
from baton.capacity.kv_transfer import WireEstimate
from baton.capacity.placement import Candidate
from baton.capacity.placement_table import TermComparison, compare_terms
from baton.capacity.snapshot import TierRates
from baton.errors import InvalidFieldError
from baton.internal.v1 import node_pb2, router_service_pb2
from baton.v1 import generation_pb2

_NANOSECONDS = 1_000_000_000

_TERM_FIELDS = tuple(f"{term}_seconds" for term in TERMS)
# Fields of messages by the names of the domain; those that are no plain numbers and texts are not among them.
_SHAPE_FIELDS = {
    "num_layers": "layer_count",
    "num_linear_parameters": "linear_parameter_count",
    "num_head_parameters": "head_parameter_count",
    "num_attention_heads": "attention_head_count",
    "num_kv_heads": "kv_head_count",
    "head_dim": "head_dim",
    "weight_bytes": "weight_byte_count",
    "kv_bytes_per_token": "kv_byte_count_per_token",
    "max_context_tokens": "max_context_token_count",
    "vocabulary_size": "vocabulary_size",
    "state_bytes": "state_byte_count",
}
_CANDIDATE_FIELDS = {
    "decode_node_id": "decode_node_id",
    "prefill_node_id": "prefill_node_id",
    "decode_cached_tokens": "decode_cached_token_count",
    "prefill_cached_tokens": "prefill_cached_token_count",
    "kv_bytes": "kv_byte_count",
    "is_link_declared": "is_link_declared",
    "infeasible_reason": "infeasible_reason",
    "pull_node_id": "pull_node_id",
    "pulled_tokens": "pulled_token_count",
    "decode_restored_tokens": "decode_restored_token_count",
    "prefill_restored_tokens": "prefill_restored_token_count",
}
_NAMES = ("key_dtype", "value_dtype", "key_seconds", "value_seconds", "pack_seconds", "state_seconds", "loss", "reason")
_BYTES = ("key", "value", "state")
_WIRE_FIELDS = {name: name for name in _NAMES} | {f"{name}_bytes": f"{name}_byte_count" for name in _BYTES}


def duration_from_seconds(seconds: float) -> Duration:
    """Return the message of a time in seconds, to the nanosecond."""
    whole, nanos = divmod(round(seconds * _NANOSECONDS), _NANOSECONDS)
    return Duration(seconds=whole, nanos=nanos)


def seconds_from_duration(duration: Duration) -> float:
    """Return the seconds of a message."""
    return float(duration.seconds + duration.nanos / _NANOSECONDS)


def shape_to_proto(shape: ModelShape) -> node_pb2.ModelShape:
    """Return the message of a model's shape."""
    counts = {field: getattr(shape, name) for name, field in _SHAPE_FIELDS.items()}
    attention = shape.attention_elements
    return node_pb2.ModelShape(
        **counts, attention_element_count=attention.prompt, step_attention_element_count=attention.step
    )


def shape_from_proto(message: node_pb2.ModelShape, *, field: str = "model_shape") -> ModelShape:
    """Return the shape of a message; raise InvalidFieldError if a count is not positive."""
    for descriptor in message.DESCRIPTOR.fields:
        least = 0 if descriptor.name.endswith(("attention_element_count", "state_byte_count")) else 1
        if getattr(message, descriptor.name) < least:
            raise InvalidFieldError(f"{field}.{descriptor.name}", f"must be at least {least}")
    counts = {name: getattr(message, field) for name, field in _SHAPE_FIELDS.items()}
    elements = AttentionElements(message.attention_element_count, message.step_attention_element_count)
    return ModelShape(**counts, attention_elements=elements)


def profile_to_proto(profile: NodeProfile, *, source: str) -> node_pb2.NodeProfile:
    """Return the message of a profile; the caller sets `measured_at`."""
    return node_pb2.NodeProfile(
        prefill_flops=profile.prefill_flops,
        prefill_overhead=duration_from_seconds(profile.prefill_overhead_seconds),
        decode_flops=profile.decode_flops,
        decode_bytes_per_second=profile.decode_bytes_per_second,
        step_overhead=duration_from_seconds(profile.step_overhead_seconds),
        source=source,
    )


def profile_from_proto(message: node_pb2.NodeProfile, *, field: str = "profile") -> NodeProfile:
    """Return the profile of a message; raise InvalidFieldError if a rate is not positive and finite."""
    for name in ("prefill_flops", "decode_flops", "decode_bytes_per_second"):
        if not 0 < getattr(message, name) < float("inf"):
            raise InvalidFieldError(f"{field}.{name}", f"must be positive, got {getattr(message, name)}")
    return NodeProfile(
        prefill_flops=message.prefill_flops,
        prefill_overhead_seconds=max(0.0, seconds_from_duration(message.prefill_overhead)),
        decode_flops=message.decode_flops,
        decode_bytes_per_second=message.decode_bytes_per_second,
        step_overhead_seconds=max(0.0, seconds_from_duration(message.step_overhead)),
    )


def tier_rates_to_proto(rates: TierRates) -> node_pb2.TierRates | None:
    """Return the message of a node's rates; None where it has nothing below its device."""
    if rates == TierRates():
        return None
    return node_pb2.TierRates(
        host_bytes_per_second=rates.host_bytes_per_second,
        disk_bytes_per_second=rates.disk_bytes_per_second,
        max_read_block_count=rates.max_read_blocks,
    )


def tier_rates_from_proto(message: node_pb2.TierRates) -> TierRates:
    """Return a node's rates."""
    host, disk = measured_rate(message.host_bytes_per_second), measured_rate(message.disk_bytes_per_second)
    return TierRates(host, disk, max(0, message.max_read_block_count))


def measured_rate(value: float) -> float:
    """Return a rate; what is negative or not finite, which no sound node sends, counts as not measured."""
    return value if 0 < value < float("inf") else 0.0


def estimate_to_proto(estimate: CostEstimate) -> router_service_pb2.CostEstimate:
    """Return the message of an estimate."""
    return router_service_pb2.CostEstimate(
        **{name: getattr(estimate, name) for name in _TERM_FIELDS},
        expected_output_token_count=estimate.expected_output_tokens,
        decode_seconds=estimate.decode_seconds,
        total_seconds=estimate.total_seconds,
    )


def estimate_from_proto(message: router_service_pb2.CostEstimate) -> CostEstimate:
    """Return the estimate of a message; the derived terms are computed again."""
    terms = {name: getattr(message, name) for name in _TERM_FIELDS}
    return CostEstimate(**terms, expected_output_tokens=message.expected_output_token_count)


def measured_terms(summary: generation_pb2.PlacementSummary) -> dict[str, float]:
    """Return what each of `MEASURED_TERMS` took a request that ran, seconds."""
    return {term: seconds_from_duration(getattr(summary, f"{term}_duration")) for term in MEASURED_TERMS}


def computing_cache(summary: generation_pb2.PlacementSummary) -> int:
    """Return the cached tokens on the node that computed the prompt, which may be the decode node."""
    is_local = summary.prefill_node_id in ("", summary.decode_node_id)
    return summary.decode_cached_token_count if is_local else summary.prefill_cached_token_count


def terms_beside(
    estimate: router_service_pb2.CostEstimate, summary: generation_pb2.PlacementSummary | None
) -> tuple[TermComparison, ...]:
    """Return what was estimated of a request beside what a node measured; one that was cut short has no measurement."""
    if summary is None or not summary.HasField("decode_duration"):
        return compare_terms(estimate_from_proto(estimate), None, 0)
    return compare_terms(estimate_from_proto(estimate), measured_terms(summary), summary.completion_token_count)


def candidate_to_proto(candidate: Candidate) -> router_service_pb2.Candidate:
    """Return the message of a candidate."""
    way = {field: getattr(candidate.wire, name) for name, field in _WIRE_FIELDS.items()} if candidate.wire else None
    return router_service_pb2.Candidate(
        **{field: getattr(candidate, name) for name, field in _CANDIDATE_FIELDS.items()},
        estimate=estimate_to_proto(candidate.estimate) if candidate.estimate else None,
        wire=router_service_pb2.WireEstimate(**way) if way else None,
    )


def candidate_from_proto(message: router_service_pb2.Candidate) -> Candidate:
    """Return the candidate of a message; the group size is not part of it."""
    way = {name: getattr(message.wire, field) for name, field in _WIRE_FIELDS.items()}
    return Candidate(
        **{name: getattr(message, field) for name, field in _CANDIDATE_FIELDS.items()},
        estimate=estimate_from_proto(message.estimate) if message.HasField("estimate") else None,
        wire=WireEstimate(**way) if message.HasField("wire") else None,
    )
