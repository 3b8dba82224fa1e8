"""What a request costs in seconds: the size of a model, the speed of a node, the formulas over both, the terms.

A prompt also waits for those that its node has still to compute (`PromptQueue`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from baton.capacity.value_class import value_class

JOIN_STEPS = 0.75
"""Part of a pass, on average, until what has come, a prompt or KV, is in one: what is left of the pass that runs, or
that and the next one where that is planned already (`engine/execution/pipeline.py`). Measured of decode steps by `baton
bench prediction`: for KV 0.36, 0.77 and 1.16 at p10, p50 and p90, for prompts 0.73 on average."""
SHORT_SHARE = 0.1
"""Part of each pass for prompts that are through sooner by it than by turns (`overtaking`).

So a short prompt waits for ten times what it and those that have it before need at most, and hardly delays a long one.
"""
FRAME_OVERHEAD_SECONDS = 1e-4
"""Fixed cost of one KV frame, paid by sender and receiver outside the payload rate."""


class AttentionElements(NamedTuple):
    """What one query multiplies with one key and one value, over all heads and layers."""

    prompt: int = 0
    """In passes over prompts."""
    step: int = 0
    """In decode steps: latents are multiplied as they are cached, not as the heads that prompts make of them."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Counts of one model (protos/baton/internal/v1/node.proto, ModelShape)."""

    num_layers: int
    """Layers, 1 or more."""
    num_linear_parameters: int
    """Parameters that multiply every token: projections of all layers; active ones for mixtures of experts."""
    num_head_parameters: int
    """Parameters of the output projection, applied to sampled positions only."""
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    weight_bytes: int
    """Bytes read in one decode step at batch 1."""
    kv_bytes_per_token: int
    """Cache bytes of one token over all layers, in the cache's dtype."""
    max_context_tokens: int
    """Longest sequence, prompt and output together."""
    vocabulary_size: int
    """Rows of the output projection."""
    attention_elements: AttentionElements = AttentionElements()
    """Zeros: keys and values have `head_dim` elements in all heads and layers."""
    state_bytes: int = 0
    """Bytes that layers keep of a sequence instead of K and V, however long it is; 0: none does."""
    attention_flop_per_pair: float = field(init=False, repr=False, compare=False)
    """Operations of one (query, key) pair over all layers: score and weighted sum, 2 per element."""
    step_flop_per_pair: float = field(init=False, repr=False, compare=False)
    """The same in a decode step."""

    def __post_init__(self) -> None:
        alike = 2 * self.num_attention_heads * self.head_dim * self.num_layers
        prompt, step = self.attention_elements
        object.__setattr__(self, "attention_flop_per_pair", 2.0 * (prompt or alike))
        object.__setattr__(self, "step_flop_per_pair", 2.0 * (step or prompt or alike))

    def step_flop(self, batch_size: float, context_tokens: float) -> float:
        """Return the operations of one decode step of `batch_size` sequences of `context_tokens` each."""
        linear = 2.0 * (self.num_linear_parameters + self.num_head_parameters)
        return batch_size * (linear + self.step_flop_per_pair * context_tokens)

    def step_bytes(self, batch_size: float, context_tokens: float) -> float:
        """Return the bytes that one decode step moves: all weights once, the KV of every sequence, states twice."""
        return self.weight_bytes + batch_size * (context_tokens * self.kv_bytes_per_token + 2 * self.state_bytes)

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


@value_class()
class NodeProfile:
    """Effective rates of a node on one model (node.proto, NodeProfile). All rates are above 0."""

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


@value_class()
class CostEstimate:
    """Predicted terms of one candidate (protos/baton/internal/v1/router_service.proto, CostEstimate)."""

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
    step_seconds: float
    """One decode step with this request in the batch."""
    expected_output_tokens: float
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
    batch_size: float = 0.0
    """Requests that it decodes with, itself included, on average; 0 in one that came by wire."""

    @property
    def decode_seconds(self) -> float:
        """Return the time of the expected output's steps."""
        return self.expected_output_tokens * self.step_seconds

    @property
    def total_seconds(self) -> float:
        """Return start + decode + imposed: what placements are compared by."""
        return self.start_seconds + self.decode_seconds + self.imposed_seconds


TERMS = tuple(each.name.removesuffix("_seconds") for each in fields(CostEstimate) if each.name.endswith("_seconds"))
"""Names of an estimate's terms in seconds, in the order of the fields."""
MEASURED_TERMS = ("queue", "pull", "prefill", "transfer", "exposed", "join", "decode")
"""Names of the terms that are measured of a request that ran, in the order in which they begin."""


def expected_seconds(estimate: CostEstimate, num_tokens: float) -> float:
    """Return the estimated time from the queue to the last of `num_tokens` tokens."""
    return estimate.start_seconds + max(0.0, num_tokens - 1) * estimate.step_seconds


class Beside(NamedTuple):
    """Sequences that decode on a node: every pass computes a position of each, and reads its KV."""

    num_sequences: float = 0.0
    context_tokens: float = 0.0
    """On average."""


_NOBODY = Beside()


def prefill_seconds(
    shape: ModelShape,
    profile: NodeProfile,
    cached_tokens: int,
    num_prompt_tokens: int,
    pass_tokens: int = 0,
    beside: Beside = _NOBODY,
) -> float:
    """Return the time for positions [cached_tokens, num_prompt_tokens) of a prompt in its passes (docs/placement.md).

    `pass_tokens`: how many a pass computes at most, each of which reads the weights, the last one too, however few are
    left for it; 0: all. `beside`: who decodes in them.
    """
    reading = shape.step_bytes(*beside) / profile.decode_bytes_per_second
    decoding = shape.step_flop(*beside) / profile.prefill_flops
    num_passes, num_left = divmod(num_prompt_tokens - cached_tokens, pass_tokens or max(1, num_prompt_tokens))
    computing = shape.prefill_flop(cached_tokens, num_prompt_tokens) / profile.prefill_flops
    computing += profile.prefill_overhead_seconds
    if not num_passes or not num_left:
        num_passes = max(1, num_passes)
        return max(computing + num_passes * decoding, num_passes * reading)
    last = shape.prefill_flop(num_prompt_tokens - num_left, num_prompt_tokens) / profile.prefill_flops
    return max(computing - last + num_passes * decoding, num_passes * reading) + max(last + decoding, reading)


class OpenPass(NamedTuple):
    """The last pass of a queue of prompts, as far as it has room for the next one."""

    num_tokens: int = 0
    """Positions that it computes."""
    num_room_tokens: int = 0
    """Positions of the next prompt that it is filled up with."""
    seconds: float = 0.0
    """Its time as it is."""


CLOSED = OpenPass()


def queued_seconds(
    shape: ModelShape,
    profile: NodeProfile,
    prompts: Sequence[tuple[int, int]],
    pass_tokens: int,
    beside: Beside = _NOBODY,
    came_at_seconds: Sequence[float] = (),
    begin_seconds: float = 0.0,
) -> tuple[list[float], OpenPass]:
    """Return what each prompt of a queue adds to it, and its last pass.

    Passes end with prompts as `scheduling.step.StepBudget` says. `prompts`: positions [begin, end) that are left of
    each. `pass_tokens`: how many a pass computes at most; 0: each prompt has passes of its own. `came_at_seconds`: when
    each came, from when the queue is reckoned: who comes when a pass has been planned is not in it; empty: all were
    there before. `begin_seconds`: until the first pass begins; the first prompt adds that too.
    """
    if not (prompts and pass_tokens):
        apart = [prefill_seconds(shape, profile, *each, 0, beside) for each in prompts]
        return [apart[0] + begin_seconds, *apart[1:]] if apart else apart, CLOSED
    reading = shape.step_bytes(*beside) / profile.decode_bytes_per_second
    tokens_per_second = profile.prefill_flops / shape.prefill_flop(0, pass_tokens) * pass_tokens
    num_free, num_fixed = reading * tokens_per_second, profile.prefill_overhead_seconds * tokens_per_second
    seconds, flop, num_ended, last = list[float](), 0.0, 0, CLOSED
    num_after, num_rest, through_at = len(prompts), sum(end - begin for begin, end in prompts), 0.0
    for (begin, end), came in zip(prompts, came_at_seconds or [-math.inf] * len(prompts), strict=True):
        num_rest, num_after = num_rest - (end - begin), num_after - 1
        if through_at - came < PLANNED_AT * last.seconds:
            last = CLOSED
        shared_end = min(end, begin + last.num_room_tokens)
        num_tokens, added_seconds, begin_seconds = last.num_tokens + shared_end - begin, begin_seconds, 0.0
        if shared_end > begin:
            flop += shape.prefill_flop(begin, shared_end)
            added_seconds += max(flop / profile.prefill_flops, reading) - last.seconds
        if end > shared_end:
            added_seconds += prefill_seconds(shape, profile, shared_end, end, pass_tokens, beside)
            num_tokens, num_ended = (end - shared_end) % pass_tokens, 0
            flop = shape.prefill_flop(end - num_tokens, end) + shape.step_flop(*beside)
        seconds.append(added_seconds)
        through_at = max(through_at, came) + added_seconds
        num_ended += 1
        num_added = min(pass_tokens, num_tokens + num_rest) - max(num_tokens, num_free)
        is_enough = not num_rest or num_added * num_ended > num_fixed * num_after
        num_room = (min(pass_tokens, round(num_free)) if is_enough else pass_tokens) - num_tokens
        last = CLOSED
        if num_tokens:
            last = OpenPass(num_tokens, max(0, num_room), max(flop / profile.prefill_flops, reading))
    return seconds, last


def step_seconds(shape: ModelShape, profile: NodeProfile, batch_size: float, context_tokens: float) -> float:
    """Return a decode step's time, by batch and mean context: a roofline of weights and KV (docs/placement.md)."""
    memory_seconds = shape.step_bytes(batch_size, context_tokens) / profile.decode_bytes_per_second
    compute_seconds = shape.step_flop(batch_size, context_tokens) / profile.decode_flops
    return max(memory_seconds, compute_seconds) + profile.step_overhead_seconds


def backlog_seconds(shape: ModelShape, profile: NodeProfile, num_pending_tokens: int, num_waiting: int) -> float:
    """Return the time for `num_pending_tokens` of `num_waiting` earlier prompts, as if they were equally long."""
    if num_pending_tokens <= 0:
        return 0.0
    num_requests = max(1, num_waiting)
    return num_requests * prefill_seconds(shape, profile, 0, math.ceil(num_pending_tokens / num_requests))


PLANNED_AT = 1.2
"""How many times its own time is left when a pass is planned, if the one that runs takes as long."""


@value_class()
class PromptQueue:
    """What is left of each prompt of a node, in seconds of its computation; `of` works the sums out."""

    seconds: tuple[float, ...] = ()
    """Of each prompt, in order of turns."""
    total_seconds: float = 0.0
    """What all prompts need together."""
    sooner_seconds: float = 0.0
    """What those need that are through sooner than by turns."""
    pass_seconds: float = 0.0
    """Time of a full pass; 0: prompts are dealt out in pieces of any size."""
    last_pass: OpenPass = CLOSED

    @classmethod
    def of(cls, seconds: Iterable[float], pass_seconds: float = 0.0, last_pass: OpenPass = CLOSED) -> PromptQueue:
        """Return the queue of prompts that need so many seconds each; those that need none are left out."""
        left = tuple(each for each in seconds if each > 0)
        if not left:
            return EMPTY_QUEUE
        sooner_seconds = sum(left[index] for index in overtaking(left))
        return cls(left, sum(left), sooner_seconds, pass_seconds, last_pass)

    def wait_seconds(self, own_seconds: float, saved_seconds: float = 0.0) -> float:
        """Return how long a prompt that comes last waits while others are computed.

        Prompts are computed in order of turns, beside a `SHORT_SHARE` of each pass for those that are through sooner by
        it. So a prompt is through when all are; or, by that share alone, when it and those that have it before are: in
        whole passes, after `JOIN_STEPS` of one. `saved_seconds`: of its own, by what the last one's last pass takes.
        """
        if not self.seconds:
            return 0.0
        by_share = (self.sooner_seconds + own_seconds) / SHORT_SHARE
        if self.pass_seconds:
            by_share = (math.ceil(by_share / self.pass_seconds) + JOIN_STEPS) * self.pass_seconds
        return min(self.total_seconds - saved_seconds, by_share - own_seconds)


EMPTY_QUEUE = PromptQueue()
"""Nothing to compute."""


class QueuedWork(NamedTuple):
    """What a node has to compute, as far as it has said and as has been placed there since."""

    listed: Sequence[float] = ()
    """Seconds of each prompt that it reported, in order of turns."""
    listed_at_seconds: float = 0.0
    placed: Sequence[tuple[float, float]] = ()
    """Of each prompt placed since, oldest first: its seconds, and when it was placed."""
    pass_seconds: float = 0.0
    """Time of a full pass; 0: not known."""
    last_pass: OpenPass = CLOSED

    def at(self, now_seconds: float, pace: float = 1.0) -> PromptQueue:
        """Return what is left at a moment. `pace`, above 0 to 1, is the part of its device's time for prompts.

        The node is taken to have computed all the while: what it listed, as it deals passes out, then what was placed
        since, each from its own coming on.
        """
        left = list(self.listed)
        idle = compute_prompts(left, (now_seconds - self.listed_at_seconds) * pace)
        for seconds, placed_at_seconds in self.placed:
            idle = min(idle, (now_seconds - placed_at_seconds) * pace)  # what it was idle before is lost
            done = min(seconds, idle)
            idle -= done
            left.append(seconds - done)
        return PromptQueue.of(left, self.pass_seconds, self.last_pass)


def overtaking(left: Sequence[float]) -> list[int]:
    """Return who is through sooner by a `SHORT_SHARE` of the passes than by turns: who else had it would only delay.

    `left`: what is left of each prompt, in order of turns, in seconds or positions. They have that share in this order
    too, so that who comes later takes nothing from it; each has it until it is through, both ends coming nearer alike.
    """
    before, taken, found = 0.0, 0.0, []
    for index, each in enumerate(left):
        before += each
        if taken + each < SHORT_SHARE * before:
            taken += each
            found.append(index)
    return found


def compute_prompts(left: list[float], seconds: float) -> float:
    """Take what a node computes in some time from what is left of its prompts, in order of turns; return the rest."""
    sooner = overtaking(left)
    short_seconds = SHORT_SHARE * seconds if sooner else 0.0
    return _deal(left, range(len(left)), seconds - short_seconds + _deal(left, sooner, short_seconds))


def _deal(left: list[float], order: Iterable[int], seconds: float) -> float:
    """Take what each needs, in this order; return what remains."""
    for index in order:
        if seconds < left[index]:
            left[index] -= seconds
            return 0.0
        seconds -= left[index]
        left[index] = 0.0
    return seconds
