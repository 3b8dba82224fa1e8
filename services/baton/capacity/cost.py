"""The size of a model, as the cost formulas need it.

The speed of a node on its model, and how it is fitted from a few measured timings.

The cost formulas: seconds of a prefill, a decode step, a transfer, a layer pipeline; where a transfer hides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Counts of one model (protos/baton/v1/node.proto, ModelShape)."""

    num_layers: int
    """Layers, 1 or more."""
    num_linear_parameters: int
    """Parameters that multiply every token: projections of all layers; active ones for mixtures of experts."""
    num_head_parameters: int
    """Parameters of the output projection, applied to sampled positions only."""
    num_attention_heads: int
    """Query heads of one layer."""
    num_kv_heads: int
    """KV heads of one layer."""
    head_dim: int
    """Elements of one head."""
    weight_bytes: int
    """Bytes read in one decode step at batch 1."""
    kv_bytes_per_token: int
    """Cache bytes of one token over all layers, in the cache's dtype."""
    max_context_tokens: int
    """Longest sequence, prompt and output together."""
    vocabulary_size: int
    """Rows of the output projection."""

    def step_flop(self, batch_size: int, context_tokens: float) -> float:
        """Return the operations of one decode step of `batch_size` sequences of `context_tokens` each."""
        linear = 2.0 * (self.num_linear_parameters + self.num_head_parameters)
        return batch_size * (linear + self.attention_flop_per_pair * context_tokens)

    def step_bytes(self, batch_size: int, context_tokens: float) -> float:
        """Return the bytes that one decode step reads: all weights once, the KV of every sequence."""
        return self.weight_bytes + batch_size * context_tokens * self.kv_bytes_per_token

    def workspace_bytes(self, pass_tokens: int) -> int:
        """Return about what a pass over `pass_tokens` positions holds beside weights and KV, in 32-bit elements.

        The outputs of one layer's projections and four copies of its input per position, and one row of logits.
        """
        width = self.num_attention_heads * self.head_dim
        layer_outputs = self.num_linear_parameters // (self.num_layers * width)
        return 4 * (pass_tokens * (layer_outputs + 4 * width) + self.vocabulary_size)

    def prefill_flop(self, cached_tokens: int, end: int) -> float:
        """Return the floating-point operations to compute positions [cached_tokens, end).

        Linear layers per position, causal attention over all earlier positions (half of the square), the output
        projection for the last position alone.
        """
        num_pairs = (end * end - cached_tokens * cached_tokens) / 2.0
        linear = 2.0 * self.num_linear_parameters * (end - cached_tokens)
        return linear + self.attention_flop_per_pair * num_pairs + 2.0 * self.num_head_parameters

    @property
    def attention_flop_per_pair(self) -> float:
        """Return the operations of one (query, key) pair over all layers: score and weighted sum, 2 per element."""
        return 4.0 * self.num_attention_heads * self.head_dim * self.num_layers


MAX_RATE = 1e18
"""Largest rate that a fit reports, FLOP/s or bytes/s: beyond it, timings show no dependency at all."""


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """Effective rates of a node on one model (protos/baton/v1/node.proto, NodeProfile). All rates are above 0."""

    prefill_flops: float
    """Rate of prefill, FLOP/s."""
    prefill_overhead_seconds: float
    """Fixed cost of one prefill pass, 0 or more."""
    decode_flops: float
    """Rate of arithmetic in decode steps, FLOP/s."""
    decode_bytes_per_second: float
    """Rate of memory reads in decode steps, bytes/s."""
    step_overhead_seconds: float
    """Fixed cost of one decode step, 0 or more."""

    def slowed(self, prefill_factor: float, decode_factor: float) -> NodeProfile:
        """Return the profile whose prefills and steps take these factors times as long."""
        return replace(
            self,
            prefill_flops=self.prefill_flops / prefill_factor,
            prefill_overhead_seconds=self.prefill_overhead_seconds * prefill_factor,
            decode_flops=self.decode_flops / decode_factor,
            decode_bytes_per_second=self.decode_bytes_per_second / decode_factor,
            step_overhead_seconds=self.step_overhead_seconds * decode_factor,
        )


class PrefillSample(NamedTuple):
    """One timed prefill without a cached prefix."""

    num_tokens: int
    """Prompt length, 1 or more."""
    seconds: float
    """Duration, above 0."""


class DecodeSample(NamedTuple):
    """One timed decode step."""

    batch_size: int
    """Sequences in the step, 1 or more."""
    context_tokens: int
    """Context of each."""
    seconds: float
    """Duration, above 0."""


class Line(NamedTuple):
    """seconds = overhead_seconds + work / rate."""

    overhead_seconds: float
    """Intercept, 0 or more."""
    rate: float
    """Work per second, above 0."""


def fit_profile(
    shape: ModelShape, prefill_samples: Sequence[PrefillSample], decode_samples: Sequence[DecodeSample]
) -> NodeProfile:
    """Fit rates and overheads to timings; one outlier among five or more samples does not move the result much.

    Args:
        shape: The model that was timed.
        prefill_samples: Two or more, over a range of lengths.
        decode_samples: Two or more, over a range of batch sizes and contexts.

    Raises:
        ValueError: If there are fewer than two samples of a kind, or a duration is not positive.
    """
    if len(prefill_samples) < 2 or len(decode_samples) < 2:
        raise ValueError(f"need 2 samples of each kind, got {len(prefill_samples)} and {len(decode_samples)}")
    if min(sample.seconds for samples in (prefill_samples, decode_samples) for sample in samples) <= 0:
        raise ValueError("durations must be positive")
    prefill = fit_line([(shape.prefill_flop(0, sample.num_tokens), sample.seconds) for sample in prefill_samples])
    memory, decode_flops = _fit_roofline(shape, decode_samples, floor_flops=prefill.rate)
    return NodeProfile(prefill.rate, prefill.overhead_seconds, decode_flops, memory.rate, memory.overhead_seconds)


def fit_line(points: Sequence[tuple[float, float]]) -> Line:
    """Fit seconds = overhead + work / rate to (work, seconds) points by the median of pairwise slopes.

    Timings that do not grow with work (noise, or too little work to see it) give the greatest rate that was seen:
    the true one is at least that.

    Source: Theil 1950, Sen 1968 (median of pairwise slopes; breaks down at 29 % outliers).
    """
    slopes = [
        (right[1] - left[1]) / (right[0] - left[0])
        for index, left in enumerate(points)
        for right in points[index + 1 :]
        if right[0] != left[0]
    ]
    slope = median(slopes) if slopes else 0.0
    if slope <= 1.0 / MAX_RATE:
        slope = min(seconds / work for work, seconds in points)
    overhead = median(seconds - slope * work for work, seconds in points)
    if overhead < 0:
        overhead, slope = 0.0, median(seconds / work for work, seconds in points)
    return Line(overhead, min(1.0 / slope, MAX_RATE))


def _fit_roofline(shape: ModelShape, samples: Sequence[DecodeSample], *, floor_flops: float) -> tuple[Line, float]:
    """Fit step = overhead + max(bytes / rate, flop / flops).

    Samples are ordered by operations per byte; every split into memory-bound ones [0, k) and compute-bound ones [k,
    n) is fitted, and the split whose prediction errs least is kept. Where no sample is compute-bound, the arithmetic
    rate is the greater of `floor_flops` and the greatest rate seen.
    """

    def work(sample: DecodeSample) -> tuple[float, float]:
        return shape.step_bytes(*sample[:2]), shape.step_flop(*sample[:2])

    ordered = sorted(samples, key=lambda sample: work(sample)[1] / work(sample)[0])
    best: tuple[float, Line, float] | None = None
    for split in range(len(ordered), 1, -1):
        memory = fit_line([(work(sample)[0], sample.seconds) for sample in ordered[:split]])
        rates = [work(sample)[1] / _above(sample.seconds - memory.overhead_seconds) for sample in ordered]
        flops = median(rates[split:]) if split < len(ordered) else max(floor_flops, *rates)
        error = fmean(
            abs(memory.overhead_seconds + max(read / memory.rate, flop / flops) - sample.seconds) / sample.seconds
            for sample, (read, flop) in ((sample, work(sample)) for sample in ordered)
        )
        if best is None or error < best[0] * (1 - 1e-9):
            best = (error, memory, flops)
    assert best is not None
    return best[1], min(best[2], MAX_RATE)


def _above(seconds: float) -> float:
    return max(seconds, 1e-9)


FRAME_OVERHEAD_SECONDS = 1e-4
"""Fixed cost of one KV frame, paid by sender and receiver outside the payload rate."""


def prefill_seconds(shape: ModelShape, profile: NodeProfile, cached_tokens: int, num_prompt_tokens: int) -> float:
    """Return the time to compute positions [cached_tokens, num_prompt_tokens) of a prompt.

    Source: docs/placement.md.
    """
    return (
        shape.prefill_flop(cached_tokens, num_prompt_tokens) / profile.prefill_flops + profile.prefill_overhead_seconds
    )


def step_seconds(shape: ModelShape, profile: NodeProfile, batch_size: int, context_tokens: float) -> float:
    """Return the time of one decode step of `batch_size` sequences with a mean context of `context_tokens`.

    Source: docs/placement.md; the roofline over weights and KV.
    """
    memory_seconds = shape.step_bytes(batch_size, context_tokens) / profile.decode_bytes_per_second
    compute_seconds = shape.step_flop(batch_size, context_tokens) / profile.decode_flops
    return max(memory_seconds, compute_seconds) + profile.step_overhead_seconds


def backlog_seconds(shape: ModelShape, profile: NodeProfile, num_pending_tokens: int, num_waiting: int) -> float:
    """Return the time to compute `num_pending_tokens` prompt tokens of `num_waiting` requests that came first.

    Attention is counted as if they were equally long.
    """
    if num_pending_tokens <= 0:
        return 0.0
    num_requests = max(1, num_waiting)
    mean_tokens = math.ceil(num_pending_tokens / num_requests)
    return num_requests * prefill_seconds(shape, profile, 0, mean_tokens)


def transfer_seconds(num_bytes: float, bytes_per_second: float, *, latency_seconds: float = 0.0) -> float:
    """Return the time to move a buffer over a link.

    Args:
        num_bytes: Payload size, 0 or more.
        bytes_per_second: Link rate, above 0.
        latency_seconds: Fixed cost per message.

    Raises:
        ValueError: If `bytes_per_second` is not positive.
    """
    if bytes_per_second <= 0:
        raise ValueError(f"bytes_per_second must be positive, got {bytes_per_second}")
    return num_bytes / bytes_per_second + latency_seconds


def pipeline_seconds(num_groups: int, compute_seconds: float, send_seconds: float) -> float:
    """Return the time until the last group of layers has arrived, where each is sent while the next is computed.

    With per-group c and s: c + (G - 1) · max(c, s) + s. Handing K and V over before the layer's attention and MLP
    hides more than that, so it is an upper bound.

    Args:
        num_groups: Groups of layers G, 1 or more.
        compute_seconds: Computation of all groups.
        send_seconds: Transfer of all groups.

    Source: docs/placement.md, measured within 1 % on shaped 1, 5 and 10 Gb/s links.
    """
    compute, send = compute_seconds / num_groups, send_seconds / num_groups
    return compute + (num_groups - 1) * max(compute, send) + send


def exposed_seconds(num_groups: int, compute_seconds: float, send_seconds: float) -> float:
    """Return the part of a transfer that remains after the computation has ended; frames' fixed cost is part of it."""
    sending = send_seconds + num_groups * FRAME_OVERHEAD_SECONDS
    return pipeline_seconds(num_groups, compute_seconds, sending) - compute_seconds


def crossover_tokens(
    shape: ModelShape, *, prefill_flops: float, bytes_per_second: float, wire_bytes_per_element: float
) -> float:
    """Return the prompt length s* from which a layer computes at least as long as its KV travels.

    s* = max(0, (q · 2 · n_kv · d_head · P_eff / B - 2 · P_layer) / (2 · n_heads · d_head)).

    Source: docs/placement.md, with checked values.
    """
    num_kv_bytes = wire_bytes_per_element * 2 * shape.num_kv_heads * shape.head_dim
    linear_flop = 2 * shape.num_linear_parameters / shape.num_layers
    flop_to_hide = num_kv_bytes * prefill_flops / bytes_per_second
    return max(0.0, (flop_to_hide - linear_flop) / (2 * shape.num_attention_heads * shape.head_dim))
