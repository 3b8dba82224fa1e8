"""Times that no candidate of a node undercuts, from a few coefficients per node. Pure.

The formulas are those of `baton.capacity.terms` without what only a closer look tells (other streams, cached blocks
that come back, frames). A node may have been looked at some time ago: meanwhile it has computed its queue at most.
Floors are compared after a multiplication by `SLACK`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from baton.capacity import cost
from baton.capacity.cost import SHORT_SHARE, Beside
from baton.capacity.snapshot import DEFAULT_OUTPUT_TOKENS, NodeSnapshot, neighbours
from baton.capacity.terms import later_seconds, pass_seconds

LEAST_OUTPUT_SHARE = 0.95
"""A request with less than this part of the mean output is not told how many others it meets at least."""
SLACK = 1 - 1e-9
"""Floors are multiplied by this: their sums are rounded otherwise than the terms' own."""


class ComputeFloor(NamedTuple):
    """Coefficients of the time until a node has computed a prompt."""

    node: NodeSnapshot
    max_tokens: int
    """Longest prompt that it can take; 0: it takes none."""
    pass_seconds: float
    """Of any prompt, with those that decode beside it."""
    token_seconds: float
    """Per position computed."""
    pair_seconds: float
    """Per n² - c²: attention."""
    least_seconds: float
    """However short it is: the weights are read once, and the KV of those that decode."""
    num_stalled: int
    """Requests that decode there, and stand still for what a prompt takes beyond their steps."""
    stalled_step_seconds: float
    """A step of theirs."""
    later_seconds: float
    """`terms.later_seconds`."""

    @classmethod
    def of(cls, node: NodeSnapshot) -> ComputeFloor:
        """Return the coefficients of a node."""
        shape, profile = node.shape, node.profile
        num_stalled = min(node.load.num_generating, node.max_batch_size)
        beside = Beside(num_stalled, node.load.mean_context_tokens)
        any_flop = shape.prefill_flop(0, 0) + shape.step_flop(*beside)
        return cls(
            node,
            0 if node.unusable_reason else min(node.num_blocks * node.block_tokens, shape.max_context_tokens - 1),
            any_flop / profile.prefill_flops + profile.prefill_overhead_seconds,
            2.0 * shape.num_linear_parameters / profile.prefill_flops,
            shape.attention_flop_per_pair / 2.0 / profile.prefill_flops,
            shape.step_bytes(*beside) / profile.decode_bytes_per_second,
            num_stalled,
            cost.step_seconds(shape, profile, num_stalled, node.load.mean_context_tokens) if num_stalled else 0.0,
            later_seconds(node),
        )

    def seconds(self, num_cached: int, num_tokens: int) -> float:
        """Return the time to compute positions [num_cached, num_tokens)."""
        computing = (
            self.pass_seconds
            + (num_tokens - num_cached) * self.token_seconds
            + (num_tokens * num_tokens - num_cached * num_cached) * self.pair_seconds
        )
        return computing if computing > self.least_seconds else self.least_seconds

    def waits(self, own_seconds: float, num_tokens: int, now_seconds: float) -> tuple[float, float]:
        """Return how long a prompt waits at least, and what it costs others there.

        They are `terms.queue_seconds`, and `terms.stall_seconds` with `terms.delay_seconds`. Of the prompts that are
        before this one no more than the time since then has been computed.
        """
        node, _, _, _, _, _, num_stalled, stalled_step_seconds, later = self
        queue, imposed = node.queue, 0.0
        if num_stalled:
            num_passes = math.ceil(num_tokens / (node.max_step_tokens or num_tokens))
            stalled = own_seconds - num_passes * stalled_step_seconds
            if stalled > 0.0:
                imposed = num_stalled * stalled
        if not queue.seconds:
            return 0.0, imposed
        age_seconds = now_seconds - node.at_seconds
        total = queue.total_seconds - age_seconds
        if total <= 0.0:
            return 0.0, imposed
        sooner = 0.0 if age_seconds > 0.0 else queue.sooner_seconds  # who is no tenth shorter any more is not
        wait = (own_seconds + sooner) / SHORT_SHARE - own_seconds + cost.JOIN_STEPS * queue.pass_seconds
        saved = queue.last_pass.seconds if queue.last_pass.num_room_tokens else 0.0
        in_turn = max(0.0, total - saved)
        return wait if wait < in_turn else in_turn, imposed + later * total * own_seconds


class DecodeFloor(NamedTuple):
    """Coefficients of what decoding on a node costs."""

    compute: ComputeFloor
    """Of the same node, for a prompt that it computes itself."""
    max_context_tokens: int
    """Longest sequence; 0: it takes none."""
    max_held_tokens: int
    """Positions in its pool."""
    read_token_seconds: float
    """Reading the KV of a position."""
    math_seconds: float
    """Arithmetic of a request."""
    math_token_seconds: float
    """Arithmetic of a position of its context."""
    pass_seconds: float
    """Of a pass that a prompt fills."""
    idle_step_seconds: float
    """Reading the weights, and what any step takes besides."""
    least_output: float
    """Output tokens from which on the following hold."""
    least_others: float
    """Requests that one decodes with at least."""
    least_step_seconds: float
    """Reading the weights and the KV of these, and what any step takes besides."""
    num_like_own: float
    """Requests whose context counts as that of the further one: itself, and these where nothing is known of theirs."""

    @classmethod
    def of(cls, node: NodeSnapshot, mean_output: float | None = None) -> DecodeFloor:
        """Return the coefficients of a node."""
        load, shape, profile = node.load, node.shape, node.profile
        num_present = min(load.num_generating, node.max_batch_size - 1)
        least_output = LEAST_OUTPUT_SHARE * (DEFAULT_OUTPUT_TOKENS if mean_output is None else mean_output)
        met_context = load.mean_context_tokens * num_present / (num_present + 1)
        least_step = cost.step_seconds(shape, profile, num_present + 1, met_context)
        others = neighbours(node, least_output * least_step)
        read_seconds = shape.weight_bytes / profile.decode_bytes_per_second
        read_token_seconds = shape.kv_bytes_per_token / profile.decode_bytes_per_second
        idle_step_seconds = read_seconds + profile.step_overhead_seconds
        return cls(
            ComputeFloor.of(node),
            0 if node.unusable_reason else shape.max_context_tokens,
            node.num_blocks * node.block_tokens,
            read_token_seconds,
            shape.step_flop(1, 0.0) / profile.decode_flops,
            shape.step_flop_per_pair / profile.decode_flops,
            pass_seconds(node),
            idle_step_seconds,
            least_output,
            others,
            idle_step_seconds + read_token_seconds * others * load.mean_context_tokens,
            1.0 if load.mean_context_tokens else 1.0 + others,
        )
