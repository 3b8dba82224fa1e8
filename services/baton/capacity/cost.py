"""The cost formulas: seconds of a prefill, a decode step, a transfer, a layer pipeline; where a transfer hides."""

from __future__ import annotations

import math

from baton.capacity.model_shape import ModelShape
from baton.capacity.profile import NodeProfile

FRAME_OVERHEAD_SECONDS = 1e-4
"""Fixed cost of one KV frame, paid by sender and receiver outside the payload rate."""


def prefill_seconds(shape: ModelShape, profile: NodeProfile, cached_tokens: int, num_prompt_tokens: int) -> float:
    """Return the time to compute positions [cached_tokens, num_prompt_tokens) of a prompt.

    Source: DESIGN.md §4.
    """
    return (
        shape.prefill_flop(cached_tokens, num_prompt_tokens) / profile.prefill_flops + profile.prefill_overhead_seconds
    )


def step_seconds(shape: ModelShape, profile: NodeProfile, batch_size: int, context_tokens: float) -> float:
    """Return the time of one decode step of `batch_size` sequences with a mean context of `context_tokens`.

    Source: DESIGN.md §4; the roofline over weights and KV.
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

    Source: ANCHORS.md §3, measured within 1 % on shaped 1, 5 and 10 Gb/s links.
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

    Source: DESIGN.md §4; ANCHORS.md §2 for checked values.
    """
    num_kv_bytes = wire_bytes_per_element * 2 * shape.num_kv_heads * shape.head_dim
    linear_flop = 2 * shape.num_linear_parameters / shape.num_layers
    flop_to_hide = num_kv_bytes * prefill_flops / bytes_per_second
    return max(0.0, (flop_to_hide - linear_flop) / (2 * shape.num_attention_heads * shape.head_dim))
