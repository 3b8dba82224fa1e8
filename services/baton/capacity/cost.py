"""What a request costs in seconds: the size of a model, the speed of a node, the formulas over both, the terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

FRAME_OVERHEAD_SECONDS = 1e-4
"""Fixed cost of one KV frame, paid by sender and receiver outside the payload rate."""


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

    def step_flop(self, batch_size: float, context_tokens: float) -> float:
        """Return the operations of one decode step of `batch_size` sequences of `context_tokens` each."""
        linear = 2.0 * (self.num_linear_parameters + self.num_head_parameters)
        return batch_size * (linear + self.attention_flop_per_pair * context_tokens)

    def step_bytes(self, batch_size: float, context_tokens: float) -> float:
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
        return NodeProfile(
            prefill_flops=self.prefill_flops / prefill_factor,
            prefill_overhead_seconds=self.prefill_overhead_seconds * prefill_factor,
            decode_flops=self.decode_flops / decode_factor,
            decode_bytes_per_second=self.decode_bytes_per_second / decode_factor,
            step_overhead_seconds=self.step_overhead_seconds * decode_factor,
        )


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Predicted terms of one candidate (protos/baton/v1/router_service.proto, CostEstimate)."""

    queue_seconds: float
    """Until the prefill node begins with this prompt."""
    prefill_seconds: float
    """To compute the positions that are in no cache of the prefill node."""
    transfer_seconds: float
    """That the link needs for the positions that travel to the decode node."""
    exposed_seconds: float
    """Part of the transfer that remains after the computation."""
    time_to_first_token_seconds: float
    """Queue, pull, restore, prefill, calls."""
    start_seconds: float
    """Until decoding can begin."""
    step_seconds: float
    """One decode step with this request in the batch."""
    expected_output_tokens: float
    """Output tokens counted on."""
    imposed_seconds: float
    """Slow-down of the requests already on the nodes, summed over them."""
    pull_seconds: float = 0.0
    """Until a prefix from another node's cache is here, as far as the queue does not hide it."""
    join_seconds: float = 0.0
    """From when the KV is on the decode node until the step that runs there is over; part of the start."""
    restore_seconds: float = 0.0
    """Until cached positions are back on their device, as far as the queue does not hide it; both nodes together."""
    uncertainty_seconds: float = 0.0
    """Standard deviation of the total, from how far outcomes of these nodes and this link lay from their estimates."""

    @property
    def decode_seconds(self) -> float:
        """Return the time of the expected output's steps."""
        return self.expected_output_tokens * self.step_seconds

    @property
    def total_seconds(self) -> float:
        """Return start + decode + imposed: what placements are compared by."""
        return self.start_seconds + self.decode_seconds + self.imposed_seconds


TERMS = tuple(field.name.removesuffix("_seconds") for field in fields(CostEstimate) if field.name.endswith("_seconds"))
"""Names of an estimate's terms in seconds, in the order of the fields."""
MEASURED_TERMS = ("queue", "pull", "prefill", "transfer", "exposed", "join", "decode")
"""Names of the terms that are measured of a request that ran, in the order in which they begin."""


def expected_seconds(estimate: CostEstimate, num_tokens: float) -> float:
    """Return the estimated time from the queue to the last of `num_tokens` tokens."""
    return estimate.start_seconds + max(0.0, num_tokens - 1) * estimate.step_seconds


def prefill_seconds(shape: ModelShape, profile: NodeProfile, cached_tokens: int, num_prompt_tokens: int) -> float:
    """Return the time to compute positions [cached_tokens, num_prompt_tokens) of a prompt.

    However few they are, the weights are read once.

    Source: docs/placement.md.
    """
    computing = shape.prefill_flop(cached_tokens, num_prompt_tokens) / profile.prefill_flops
    return max(computing + profile.prefill_overhead_seconds, shape.weight_bytes / profile.decode_bytes_per_second)


def step_seconds(shape: ModelShape, profile: NodeProfile, batch_size: float, context_tokens: float) -> float:
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
