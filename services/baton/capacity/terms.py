"""The terms that placement compares: of one node as decoder or prefiller, and of a pair. Pure, one place per formula.

A node's terms are computed once per request and node; a pair's are made of two nodes' terms and their link.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from baton.capacity import cost, kv_transfer
from baton.capacity.kv_transfer import CACHE, FramePlan, WireChoice, WireOption, WirePolicy, choose_wire, plan_frames
from baton.capacity.prefix_reuse import PrefixMatch, Pull, match_prefix
from baton.capacity.snapshot import Link, NodeSnapshot, PlacementRequest, blocks_for, neighbours, room_seconds
from baton.capacity.stream_sharing import LinkRates, StreamWindow, link_rates

LATER_SHARE = 0.5
"""Part of the later prompts that wait for an earlier one where others are queued before it."""
MAX_PROMPT_SHARE = 0.9
"""Part of its time at most that a node is taken to spend on later prompts while its queue empties."""
USUAL_PASS_TOKENS = 512
"""Positions of a pass of a node that does not tell."""


class DecodeTerms(NamedTuple):
    """What decoding on one node costs, wherever the prompt is computed."""

    node: NodeSnapshot
    match: PrefixMatch
    expected_output_tokens: float
    step_seconds: float
    """One step with this request in the batch."""
    batch_size: float
    """Requests in it on average, this one included."""
    slowdown_seconds: float
    """What the longer steps cost the requests already in the batch."""
    pass_seconds: float
    """Of a pass that a prompt of this node fills."""
    room_seconds: float
    """Until the batch and the pool have room."""
    join_seconds: float
    """For which KV that has come from elsewhere waits for the step that runs there."""

    def total_seconds(self, start_seconds: float, imposed_seconds: float) -> float:
        """Return what placements are compared by; `CostEstimate.total_seconds` of the same figures."""
        return start_seconds + self.expected_output_tokens * self.step_seconds + imposed_seconds


class PrefillTerms(NamedTuple):
    """What computing the prompt on one node costs, wherever it is decoded."""

    node: NodeSnapshot
    match: PrefixMatch
    num_computed_tokens: int
    queue_seconds: float
    """Prompts that it computes first."""
    prefill_seconds: float
    imposed_seconds: float
    """What that costs the requests that decode there meanwhile, and those whose prompts come later."""


class LocalTerms(NamedTuple):
    """What it costs to compute and decode on one node."""

    queue_seconds: float
    """Prompts that it computes first, and room."""
    restore_seconds: float
    """Cached positions come back, as far as the queue does not hide it."""
    pull_seconds: float
    """A prefix comes from elsewhere, as far as the queue does not hide it."""
    prefill_seconds: float
    start_seconds: float
    imposed_seconds: float


class LandingTerms(NamedTuple):
    """What KV meets on its way from one node to another, whatever link is between them."""

    queue_seconds: float
    """Until the one that lacks it has room, asks for it, and it is its turn at the other."""
    restore_seconds: float
    """Cached positions come back on both, as far as the queue does not hide it."""
    reading_seconds: float
    """What the one has cached and the other lacks is read, before the rest is computed."""
    num_sent_tokens: int
    window: StreamWindow
    """When they are read or computed."""
    landing_seconds: float
    """To write them into the memory of the device, after what waits there and beside what comes; 0: not known."""


class TransferTerms(NamedTuple):
    """What KV meets on its way from one node to another."""

    landing: LandingTerms
    wire: WireChoice
    bytes_per_second: float
    """Rate of the link, as far as other streams leave it."""
    transfer_seconds: float
    """That the link alone carries them in."""
    send_seconds: float
    """That link and landing need for them, beside others: whichever takes longer."""


class RemoteTerms(NamedTuple):
    """What it costs to compute on one node and to decode on another."""

    stream: TransferTerms
    frames: FramePlan
    transfer_seconds: float
    """For which the link is busy with them."""
    first_token_seconds: float
    join_seconds: float
    """Until the step that runs on the decode node is over."""
    start_seconds: float
    imposed_seconds: float
    """Slow-down of the requests that are on either node."""


def decode_terms(request: PlacementRequest, node: NodeSnapshot, expected: float) -> DecodeTerms:
    """Return what decoding `expected` tokens costs on a node, in the batch that the request will meet.

    Prompts that the node computes meanwhile lengthen its steps: those that are left when this one begins, and as many
    of later ones as of late.
    """
    load, shape, profile = node.load, node.shape, node.profile
    own_context = request.num_prompt_tokens + expected / 2
    mean_context = load.mean_context_tokens or own_context

    def seconds(others: float) -> float:
        context = (others * mean_context + own_context) / (others + 1)
        return cost.step_seconds(shape, profile, others + 1, context)

    num_present = min(load.num_generating, node.max_batch_size - 1)
    others = neighbours(node, expected * seconds(num_present))
    step = seconds(others)
    step_without = cost.step_seconds(shape, profile, others, mean_context) if others else 0.0
    left_seconds, whole = max(0.0, node.queue.total_seconds - node.arrival_seconds), pass_seconds(node)
    num_new_tokens = request.num_prompt_tokens + math.ceil(expected) - request.cached_on(node)
    return DecodeTerms(
        node=node,
        match=match_prefix(request, node),
        expected_output_tokens=expected,
        step_seconds=seconds_beside_prompts(
            expected, step, whole, prompt_share=node.prompt_share, left_seconds=left_seconds
        )
        / expected,
        batch_size=others + 1,
        slowdown_seconds=others * max(0.0, step - step_without) * expected,
        pass_seconds=whole,
        room_seconds=room_seconds(node, blocks_for(node, num_new_tokens), expected * step),
        join_seconds=join_seconds(node),
    )


def pass_seconds(node: NodeSnapshot) -> float:
    """Return the time of a pass that a node fills with a prompt."""
    return cost.prefill_seconds(node.shape, node.profile, 0, node.max_step_tokens or USUAL_PASS_TOKENS)


def seconds_beside_prompts(
    num_steps: float, step_seconds: float, pass_seconds: float, *, prompt_share: float, left_seconds: float = 0.0
) -> float:
    """Return the time of so many decode steps on a node that computes prompts as well. Ascends with every argument.

    Who decodes takes a token in each pass, be it a step or a prompt's: never is a token longer in coming than a pass.
    `num_steps`: how many, above 0. `step_seconds`: of one without prompts, above 0. `pass_seconds`: of a pass that a
    prompt fills. `prompt_share`: part of the time that later prompts take, 0 to 1; what is above counts as 1.
    `left_seconds`: what earlier prompts still take when decoding begins.
    """
    if not (prompt_share or left_seconds):
        return num_steps * step_seconds
    whole = max(pass_seconds, step_seconds)
    share = min(1.0, prompt_share)
    beside = 1 / ((1 - share) / step_seconds + share / whole)
    num_behind = min(num_steps, left_seconds / whole)
    return num_behind * whole + (num_steps - num_behind) * beside


def prefill_terms(request: PlacementRequest, node: NodeSnapshot, expected: float) -> PrefillTerms:
    """Return what computing the prompt costs on a node for another one. `expected`: output tokens of a request.

    Of a node that decodes as well it takes a slot and blocks, for which it waits until others have ended.
    """
    match = match_prefix(request, node)
    prefill = node.prefill_seconds(match.num_tokens, request.num_prompt_tokens)
    num_computed = request.num_prompt_tokens - match.num_tokens
    room = room_seconds(node, blocks_for(node, num_computed), expected * running_step_seconds(node))
    return PrefillTerms(
        node=node,
        match=match,
        num_computed_tokens=num_computed,
        queue_seconds=max(queue_seconds(node, prefill, num_computed), room),
        prefill_seconds=prefill,
        imposed_seconds=stall_seconds(node, prefill, num_computed, match.restore.copy_seconds)
        + delay_seconds(node, prefill),
    )


def stall_seconds(node: NodeSnapshot, prefill_seconds: float, num_tokens: int, copy_seconds: float = 0.0) -> float:
    """Return what a prompt costs all that decode on a node while it is computed there.

    Who decodes takes a token in each of the prompt's passes, and none while cached KV is copied back. Those that are
    still to begin are in front of the prompt, so that they decode by then.
    """
    load = node.load
    num_stalled = min(load.num_generating, node.max_batch_size)
    if not num_stalled:
        return 0.0
    num_passes = math.ceil(num_tokens / (node.max_step_tokens or num_tokens))
    step = cost.step_seconds(node.shape, node.profile, num_stalled, load.mean_context_tokens)
    return num_stalled * (copy_seconds + max(0.0, prefill_seconds - num_passes * step))


def queue_seconds(node: NodeSnapshot, own_seconds: float, num_tokens: int = 0) -> float:
    """Return how long a prompt of so many seconds waits: for the prompts that are there, or the step that runs.

    The last pass of those is filled up with its first positions; what it saves by that counts as waiting less. Where
    that is nearly over the next one is planned already, a step of those that decode, if there are any.
    """
    queue, saved, last = node.queue, 0.0, node.queue.last_pass
    num_shared = min(num_tokens, last.num_room_tokens)
    if num_shared and queue.total_seconds > cost.PLANNED_AT * last.seconds:
        num_open, num_left = last.num_tokens, num_tokens - num_shared
        apart = node.prefill_seconds(0, num_open) + node.prefill_seconds(0, num_tokens)
        left_seconds = node.prefill_seconds(0, num_left) if num_left else 0.0
        together = node.prefill_seconds(0, num_open + num_shared) + left_seconds
        saved = max(0.0, min(last.seconds, apart - together))
    planned_seconds = 0.0
    if 0.0 < queue.total_seconds < (cost.PLANNED_AT - 1) * (last.seconds or queue.pass_seconds):
        planned_seconds = running_step_seconds(node, min(1, node.load.num_generating))  # who is computed decodes then
    return planned_seconds + (queue.wait_seconds(own_seconds, saved) or join_seconds(node))


def delay_seconds(node: NodeSnapshot, prefill_seconds: float) -> float:
    """Return by how much a prompt delays those that come while others are queued: it is part of what they wait for."""
    return later_seconds(node) * node.queue.total_seconds * prefill_seconds


def later_seconds(node: NodeSnapshot) -> float:
    """Return how many later prompts wait for an earlier one, per second of what is queued before it.

    While the queue empties more come: of each second that the node computes only 1 - `prompt_share` shortens it.
    """
    return LATER_SHARE * node.prompts_per_second / (1 - min(MAX_PROMPT_SHARE, node.prompt_share))


def local_terms(request: PlacementRequest, decode: DecodeTerms, pull: Pull | None = None) -> LocalTerms:
    """T_local = max(queue_d, max(room_d, read_d) + pull) + copy_d + prefill_d(c, n), and queue_d is room_d or more.

    Interval table: [0, r) is on d's device; [r, c_d) is read from its disk, while prompts before this one are computed,
    and copied; [c_d, c) is pulled, as soon as d has room, while others are computed; [c, n) is computed on d. Without a
    pull c = c_d.
    """
    node, room, restore = decode.node, decode.room_seconds, decode.match.restore
    begin = pull.end if pull else decode.match.num_tokens
    prefill = node.prefill_seconds(begin, request.num_prompt_tokens)
    queue = max(queue_seconds(node, prefill, request.num_prompt_tokens - begin), room)
    reading = max(0.0, restore.read_seconds - queue)
    pulling = max(0.0, max(room, restore.read_seconds) + pull.seconds - queue - reading) if pull else 0.0
    return LocalTerms(
        queue_seconds=queue,
        restore_seconds=reading + restore.copy_seconds,
        pull_seconds=pulling,
        prefill_seconds=prefill,
        start_seconds=queue + reading + restore.copy_seconds + pulling + prefill,
        imposed_seconds=decode.slowdown_seconds
        + stall_seconds(node, prefill, request.num_prompt_tokens - begin, restore.copy_seconds)
        + delay_seconds(node, prefill),
    )


def remote_terms(decode: DecodeTerms, prefill: PrefillTerms, link: Link, stream: TransferTerms) -> RemoteTerms:
    """T_remote = max(room_d, read_d + copy_d + max(queue_p, read_p) + copy_p + layer pipeline).

    The pipeline is of reading [c_d, c_p) on p, prefill_p(c_p, n), the way over the link, and the transfer of [c_d, n).
    """
    node, landing, window = prefill.node, stream.landing, stream.landing.window
    frames = plan_frames(
        prefill.num_computed_tokens,
        node.shape.num_layers,
        max_chunk_tokens=node.max_step_tokens,
        compute_seconds=window.compute_seconds,
        send_seconds=stream.send_seconds,
        state_seconds=stream.wire.state_bytes / stream.bytes_per_second,
        least_pass_seconds=node.shape.step_bytes(1, 0) / node.profile.decode_bytes_per_second,
        pass_overhead_seconds=node.profile.prefill_overhead_seconds,
    )
    first_token = window.begin_seconds + frames.compute_seconds + link.round_trip_seconds
    arrived = first_token + frames.exposed_seconds
    joined = joined_seconds(decode, arrived)
    return RemoteTerms(
        stream=stream,
        frames=frames,
        transfer_seconds=frames.busy_seconds(stream.transfer_seconds, link.frame_seconds),
        first_token_seconds=first_token,
        join_seconds=joined - arrived,
        start_seconds=joined,
        imposed_seconds=decode.slowdown_seconds
        + prefill.imposed_seconds
        + landing.reading_seconds * min(node.load.num_generating, node.max_batch_size),
    )


def landing_terms(request: PlacementRequest, decode: DecodeTerms, prefill: PrefillTerms) -> LandingTerms:
    """Return what of the way of a prompt's KV does not depend on the link.

    Interval table: [0, c_d) is on d already, or brought back before p is called; [c_d, n) travels; [0, c_p) is on p,
    or brought back there; [c_p, n) is computed on p. What reaches d has yet to be written into its device's memory.
    """
    here, there, queue = decode.match, prefill.match, max(prefill.queue_seconds, decode.room_seconds)
    num_sent = request.num_prompt_tokens - here.num_tokens
    restoring = here.restore.seconds + max(0.0, there.restore.read_seconds - queue) + there.restore.copy_seconds
    reading = reading_seconds(prefill.node, there.num_tokens - here.num_tokens)
    num_bytes = num_sent * decode.node.shape.kv_bytes_per_token + decode.node.shape.state_bytes
    window = StreamWindow(num_bytes, queue + restoring, reading + prefill.prefill_seconds)
    return LandingTerms(queue, restoring, reading, num_sent, window, landing_seconds(prefill.node, decode.node, window))


def stream_terms(
    decode: DecodeTerms, prefill: PrefillTerms, landing: LandingTerms, link: Link, policy: WirePolicy
) -> TransferTerms:
    """Return the way of a prompt's KV from the node that computes it to the one that decodes."""
    num_sent, computing = landing.num_sent_tokens, landing.window.compute_seconds
    token_bytes = decode.node.shape.kv_bytes_per_token
    options = link.wires or (WireOption(CACHE, token_bytes - token_bytes // 2, token_bytes // 2),)
    rates = LinkRates(link.bytes_per_second, link.bytes_per_second)
    if prefill.node.sending or decode.node.receiving:
        rates = link_rates(prefill.node, decode.node, link, landing.window)
    wire = choose_wire(options, policy, num_tokens=num_sent, bytes_per_second=rates.shared, compute_seconds=computing)
    if decode.node.shape.state_bytes:
        wire = wire._replace(state_bytes=decode.node.shape.state_bytes)
    sending = together = wire.transfer_seconds(num_sent, rates.shared)
    if rates.together != rates.shared:
        together = wire.transfer_seconds(num_sent, rates.together)
    return TransferTerms(landing, wire, rates.shared, together, max(sending, landing.landing_seconds))


def running_step_seconds(node: NodeSnapshot, num_least: int = 0) -> float:
    """Return what a step takes of those that decode on a node, so many at least; 0: nothing decodes."""
    num_decoding = max(num_least, node.load.num_decoding)
    if not num_decoding:
        return 0.0
    return cost.step_seconds(node.shape, node.profile, num_decoding, node.load.mean_context_tokens)


def join_seconds(node: NodeSnapshot) -> float:
    """Return how long what has come to a node waits for the step that runs there; 0: nothing decodes."""
    return cost.JOIN_STEPS * running_step_seconds(node)


def joined_seconds(decode: DecodeTerms, arrived_seconds: float) -> float:
    """Return when KV joins a batch that has come after a time from now: `join_seconds` later, unless prompts are left.

    Then it waits for the pass that runs and takes its first token in the next one. Where a prompt fills that, too, it
    takes longer than the step that counts for it. Ascends with `arrived_seconds`.
    """
    in_batch = arrived_seconds + decode.join_seconds
    prompts_seconds = decode.node.queue.total_seconds
    if arrived_seconds >= prompts_seconds:
        return in_batch
    token_late_seconds = max(0.0, decode.pass_seconds - decode.step_seconds)
    in_passes = arrived_seconds + cost.JOIN_STEPS * decode.pass_seconds + token_late_seconds
    return max(in_batch, min(prompts_seconds, in_passes))


def reading_seconds(sender: NodeSnapshot, num_tokens: int) -> float:
    """Return the time to read so many cached positions for another node, between two passes; 0: not known."""
    rate = sender.load.reading_bytes_per_second
    return max(0, num_tokens) * sender.shape.kv_bytes_per_token / rate if rate else 0.0


def landing_seconds(sender: NodeSnapshot, receiver: NodeSnapshot, window: StreamWindow) -> float:
    """Return the time to write a stream into the memory of the device, after what waits there; 0: not known."""
    rate = receiver.load.landing_bytes_per_second
    if not rate:
        return 0.0
    waiting_seconds = max(0.0, receiver.load.num_landing_bytes / rate - window.begin_seconds)
    ahead, beside = kv_transfer.parted(receiver.receiving, sender.node_id)
    begin_seconds, compute_seconds = window.begin_seconds, window.compute_seconds
    shared = kv_transfer.slowdown(window.num_bytes, rate, begin_seconds, compute_seconds, beside, ahead)
    return waiting_seconds + window.num_bytes / rate * shared
