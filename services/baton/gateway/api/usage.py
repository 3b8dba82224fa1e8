"""Usage and placement details of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from baton.gateway.access.admission import RequestContext
from baton.gateway.generation.requests import GenerationResult
from baton.v1 import generation_pb2
from baton.v1.generation_pb2 import PlacementSummary
from baton.wire.quantities import seconds_from_duration


class CachedTokens(msgspec.Struct):
    """`prompt_tokens_details` of OpenAI's usage."""

    cached_tokens: int


class CompletionTokens(msgspec.Struct):
    """`completion_tokens_details` of OpenAI's usage."""

    reasoning_tokens: int


class UsageBody(msgspec.Struct, omit_defaults=True):
    """OpenAI's usage."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionTokens | None = None
    """Left out where reasoning is not counted."""


class PlacementBody(msgspec.Struct, omit_defaults=True):
    """Where and how one generation ran: the top-level `baton` of an answer. Durations in seconds.

    The measured figures, from `kv_bytes` to `preemptions`, are left out where no node reported them: a stop string cut
    the generation short, or its node was lost with the last token.
    """

    request_id: str
    prefill_node: str
    decode_node: str
    placement_id: str
    seed: int
    attempts: int
    kv_bytes: int | None = None
    kv_frames: int | None = None
    kv_wire: str | None = None
    """Number format in which K and V travelled, as K/V where they differ; empty: nothing was carried."""
    kv_transport: str | None = None
    """What carried the KV: "shared" (memory), "fast" or "grpc"; empty: nothing was carried."""
    kv_transport_reason: str | None = None
    """Why the fast path did not, although it could have been used; else empty."""
    decode_cached_tokens: int | None = None
    prefill_cached_tokens: int | None = None
    pull_node: str | None = None
    """Node from whose prefix cache the prompt's beginning was asked; this and the next two are left out without one."""
    pulled_tokens: int | None = None
    pull_seconds: float | None = None
    """Time for which they were waited for."""
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    transfer_seconds: float | None = None
    exposed_seconds: float | None = None
    decode_seconds: float | None = None
    exposed_share: float | None = None
    """Part of the transfer that did not hide behind computation, 0 to 1; 0 without a transfer."""
    fallback_reason: str | None = None
    kv_breaks: list[str] | None = None
    """Why each KV stream of the request broke, in order."""
    kv_resumes: int | None = None
    """KV streams that went on where another had broken."""
    kv_kept_tokens: int | None = None
    """Prompt tokens whose KV was kept where a stream broke; left out where none did."""
    preemptions: int | None = None
    shared_tokens: int | None = None
    """Prompt tokens that another request of the same beginning computed meanwhile; left out where none were."""
    join_seconds: float | None = None
    """From when all KV had come until the request could join the batch, part of `decode_seconds`; left out without."""
    mean_batch_size: float | None = None
    """Requests that decoded with it, itself included, on average; left out where it had no step there."""
    prefill_energy_joules: float | None = None
    """What the computing node's machine drew over the prefill, all its work counted; left out without a sensor."""
    decode_energy_joules: float | None = None
    """The same of the decode node's, from the first to the last token."""
    prefill_peak_memory_bytes: int | None = None
    """Peak of a remote prefill node's process since its start, of the accelerator's memory where it has its own."""
    decode_peak_memory_bytes: int | None = None
    """The same of the decode node's; both are left out where they are not known."""
    degraded_max_tokens: int | None = None
    """Output tokens to which the request was cut, because the cluster was overloaded; left out where it was not."""
    ignored: list[str] = []
    """Fields of the request that were left out, without indices; left out where there are none."""
    choices: list[PlacementBody] | None = None
    """One per choice where there is more than one; the fields above are those of the first."""


_TRANSPORTS: Mapping[int, str] = {
    generation_pb2.KV_TRANSPORT_GRPC: "grpc",
    generation_pb2.KV_TRANSPORT_FAST: "fast",
    generation_pb2.KV_TRANSPORT_SHARED: "shared",
}


def usage_body(results: Sequence[GenerationResult], num_choices: int = 1) -> UsageBody:
    """Return the usage of all choices; a prompt counts once, however many choices it has."""
    by_prompt = results[::num_choices]
    num_prompt_tokens = sum(result.num_prompt_tokens for result in by_prompt)
    num_completion_tokens = sum(result.num_completion_tokens for result in results)
    reasoning = [result.num_reasoning_tokens for result in results if result.num_reasoning_tokens is not None]
    return UsageBody(
        prompt_tokens=num_prompt_tokens,
        completion_tokens=num_completion_tokens,
        total_tokens=num_prompt_tokens + num_completion_tokens,
        prompt_tokens_details=CachedTokens(sum(result.num_cached_tokens for result in by_prompt)),
        completion_tokens_details=CompletionTokens(sum(reasoning)) if len(reasoning) == len(results) else None,
    )


class IgnoredBody(msgspec.Struct):
    """The top-level `baton` of an answer that tells nothing else of what happened."""

    ignored: Sequence[str]
    """Fields of the request that were left out, without indices."""


def ignored_body(context: RequestContext) -> IgnoredBody | msgspec.UnsetType:
    """Return what an answer tells of fields that were left out; unset: there are none."""
    return IgnoredBody(context.ignored) if context.ignored else msgspec.UNSET


def placement_body(context: RequestContext, results: Sequence[GenerationResult]) -> PlacementBody:
    """Return the details of an answer's generations, 1 or more."""
    bodies = [_placement(context.request_id, result) for result in results]
    first = bodies[0] if len(bodies) == 1 else _placement(context.request_id, results[0])
    first.choices = bodies if len(bodies) > 1 else None
    first.ignored = context.ignored
    return first


def _placement(request_id: str, result: GenerationResult) -> PlacementBody:
    summary = result.summary
    body = PlacementBody(
        request_id=request_id,
        prefill_node=summary.prefill_node_id or summary.decode_node_id,
        decode_node=summary.decode_node_id,
        placement_id=summary.placement_id,
        seed=result.seed,
        attempts=result.num_attempts,
        degraded_max_tokens=result.degraded_max_tokens or None,
    )
    if summary.HasField("decode_duration"):
        _measure(body, summary)
    return body


def _wire(summary: PlacementSummary) -> str:
    formats = [summary.key_wire_dtype, summary.value_wire_dtype]
    known = [generation_pb2.KvDtype.Name(dtype).removeprefix("KV_DTYPE_").lower() for dtype in formats if dtype]
    return "/".join(dict.fromkeys(known))


def _measure(body: PlacementBody, summary: PlacementSummary) -> None:
    """Fill in what the decode node reported."""
    body.kv_bytes = summary.kv_byte_count
    body.kv_frames = summary.kv_frame_count
    body.kv_wire = _wire(summary)
    body.kv_transport = _TRANSPORTS.get(summary.kv_transport, "")
    body.kv_transport_reason = summary.kv_transport_reason
    body.decode_cached_tokens = summary.decode_cached_token_count
    body.prefill_cached_tokens = summary.prefill_cached_token_count
    if summary.pull_node_id:
        body.pull_node = summary.pull_node_id
        body.pulled_tokens = summary.pulled_token_count
        body.pull_seconds = seconds_from_duration(summary.pull_duration)
    for term in ("queue", "prefill", "transfer", "exposed", "decode"):
        setattr(body, f"{term}_seconds", seconds_from_duration(getattr(summary, f"{term}_duration")))
    transfer, exposed = seconds_from_duration(summary.transfer_duration), body.exposed_seconds or 0.0
    body.exposed_share = min(1.0, exposed / transfer) if transfer > 0 else 0.0
    body.fallback_reason = summary.fallback_reason
    body.kv_breaks = list(summary.kv_break_reasons)
    body.kv_resumes = summary.kv_resume_count
    body.kv_kept_tokens = summary.kv_kept_token_count or None
    body.preemptions = summary.preemption_count
    body.shared_tokens = summary.shared_token_count or None
    if summary.HasField("join_duration"):
        body.join_seconds = seconds_from_duration(summary.join_duration)
    body.mean_batch_size = round(summary.mean_batch_size, 2) or None
    if summary.HasField("prefill_energy_joules"):
        body.prefill_energy_joules = summary.prefill_energy_joules
    if summary.HasField("decode_energy_joules"):
        body.decode_energy_joules = summary.decode_energy_joules
    body.prefill_peak_memory_bytes = summary.prefill_peak_memory_byte_count or None
    body.decode_peak_memory_bytes = summary.decode_peak_memory_byte_count or None
