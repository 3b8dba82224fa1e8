"""In what frames and number formats K and V travel over one link: lossless wherever the link is no bottleneck. Pure.

A frame is a group of layers of the positions of one pass. Loss is the mean Kullback-Leibler divergence, in nats, of the
next token's distribution after a context whose K or V went through a format, from that after the untouched context.
Losses of K and V are added up. Streams that share a network card, a link or the way into a device's memory slow each
other down (`slowdown`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import NamedTuple

from baton.capacity import cost
from baton.capacity.value_class import value_class

MIN_CHUNK_TOKENS = 256
"""Shortest chunk that is chosen: matrix units of accelerators are not full below it."""
LEAST_CHUNK_GAIN = 0.01
"""Share of the time until decoding can begin that shorter chunks must save: they cost other requests passes."""


class FramePlan(NamedTuple):
    """Frames of one prompt."""

    layers_per_frame: int
    """Layers of one frame, 1 or more."""
    chunk_tokens: int
    """Positions computed in one pass at most; 0: as many as the node does by itself."""
    compute_seconds: float
    """Time of the computation in such passes."""
    exposed_seconds: float
    """What remains of the transfer after it."""
    num_frames: int = 1
    """Of all layers and passes."""

    def busy_seconds(self, transfer_seconds: float, frame_seconds: float) -> float:
        """Return for how long a link is busy that needs `transfer_seconds` for all bytes, `frame_seconds` a frame."""
        frame = transfer_seconds / self.num_frames + frame_seconds
        return min(self.num_frames * frame, max(self.compute_seconds, transfer_seconds) + frame)

    @property
    def start_seconds(self) -> float:
        """Return the time until decoding can begin."""
        return self.compute_seconds + self.exposed_seconds


def plan_frames(
    num_tokens: int,
    num_layers: int,
    *,
    max_chunk_tokens: int,
    compute_seconds: float,
    send_seconds: float,
    state_seconds: float = 0.0,
    least_pass_seconds: float = 0.0,
    pass_overhead_seconds: float = 0.0,
) -> FramePlan:
    """Return the frames with which decoding can begin soonest.

    A frame is a group of layers of a chunk of positions. Small ones shorten the wait for the first and the tail after
    the last; each has a fixed cost, so none is made that the link takes less time for than that, and a short prompt
    goes as one. Chunks shorter than the node's own cost passes, and are chosen only where groups of one layer leave
    too much: a long prompt on a node that would compute it at once, a model of few layers.

    Args:
        num_tokens: Positions to compute, 1 or more.
        num_layers: Layers, 1 or more.
        max_chunk_tokens: Positions that the node computes in one pass by itself; 0: not known, and left alone.
        compute_seconds: Time of the computation in such passes.
        send_seconds: Time that the link needs for all frames.
        state_seconds: Part of it for states, which only the last pass brings.
        least_pass_seconds: Time that the shortest pass takes: the weights are read.
        pass_overhead_seconds: Fixed cost of a pass.
    """
    own = min(num_tokens, max_chunk_tokens or num_tokens)
    num_own_passes = math.ceil(num_tokens / own)
    best = _best_groups(num_own_passes, num_layers, compute_seconds, send_seconds, state_seconds)
    chunk = own if max_chunk_tokens else 0
    while chunk >= 2 * MIN_CHUNK_TOKENS:
        chunk = math.ceil(chunk / 2)
        num_passes = math.ceil(num_tokens / chunk)
        computing = max(compute_seconds, num_passes * least_pass_seconds)
        computing += (num_passes - num_own_passes) * pass_overhead_seconds
        if computing > (1 - LEAST_CHUNK_GAIN) * best.start_seconds:
            break  # too little is left to save
        plan = _best_groups(num_passes, num_layers, computing, send_seconds, state_seconds)
        if plan.start_seconds > (1 - LEAST_CHUNK_GAIN) * best.start_seconds:
            break
        best = plan._replace(chunk_tokens=chunk)
    return best


@cache
def group_sizes(num_layers: int) -> tuple[int, ...]:
    """Return the groups of layers that are worth a try: all of them, halved again and again, down to one."""
    return tuple(max(1, num_layers >> halvings) for halvings in range(num_layers.bit_length()))


def _best_groups(
    num_passes: int, num_layers: int, compute_seconds: float, send_seconds: float, state_seconds: float
) -> FramePlan:
    """Return the best group size, of the number of layers halved again and again; the largest wins a tie."""
    best_size, best_count, least_exposed, least_tail = 0, 1, math.inf, 0.0
    if state_seconds:  # layer by layer in the last pass, with its share of the rest
        send = ((send_seconds - state_seconds) / num_passes + state_seconds) / num_layers
        least_tail = send + (num_layers - 1) * max(0.0, send - compute_seconds / num_passes / num_layers)
    for size in group_sizes(num_layers):
        num_frames = num_passes * -(-num_layers // size)
        fixed_seconds = num_frames * cost.FRAME_OVERHEAD_SECONDS
        if best_size and send_seconds < fixed_seconds:
            break  # frames that the link takes in less than their fixed cost
        compute, send = compute_seconds / num_frames, (send_seconds + fixed_seconds) / num_frames
        exposed = send + ((num_frames - 1) * (send - compute) if send > compute else 0.0)
        if exposed < least_exposed:
            best_size, best_count, least_exposed = size, num_frames, exposed
    return FramePlan(best_size, 0, compute_seconds, max(least_exposed, least_tail), best_count)


AUTO, CACHE = "auto", "cache"
LEAST_FORMAT_GAIN = 0.05
"""Share of the transfer that a lossy format must save: less is not worth any loss."""


class WireReason(Enum):
    """Why a format was chosen, in words."""

    NO_OPTION = "both nodes know no other format for this cache"
    CONVERTED = "the caches differ, and rounding to the decode node's format is within the allowed loss"
    KEEPS_UP = "the link keeps up with the computation, so nothing is rounded"
    NO_LOSS_ALLOWED = "the link is the bottleneck, but no format is within the allowed loss"
    NO_GAIN = "the link is the bottleneck, but no format within the allowed loss would be faster"
    NARROWED = "the link is the bottleneck, and this is within the allowed loss"
    SET = "set by the operator"
    SET_BUT_UNABLE = "the format set by the operator is not one that both nodes and this cache can do"


@dataclass(frozen=True, slots=True)
class WireAbility:
    """One number format in which a node can send or receive its cache (node.proto, WireAbility)."""

    dtype: str
    pack_bytes_per_second: float
    """Rate of packing, bytes of cache per second; above 0."""
    unpack_bytes_per_second: float
    """Rate of unpacking, bytes of cache per second; above 0."""
    key_loss: float = math.inf
    """Loss where K alone travels in it, nats, 0 or more; inf: not measured."""
    value_loss: float = math.inf
    """Loss where V alone travels in it."""


@dataclass(frozen=True, slots=True)
class WireOption:
    """One number format in which a pair of nodes can exchange KV."""

    dtype: str
    key_bytes: int
    """Bytes of K of one position over all layers, scales included."""
    value_bytes: int
    """Bytes of V."""
    key_pack_seconds: float = 0.0
    """Time to pack or unpack K of one position, whichever node needs longer."""
    value_pack_seconds: float = 0.0
    key_loss: float = 0.0
    """Loss where K alone travels in it, nats; 0: lossless."""
    value_loss: float = 0.0
    """Loss where V alone travels in it."""
    is_conversion: bool = False
    """Whether it rounds because the caches differ, so that no option is lossless."""


class WirePolicy(NamedTuple):
    """What the operator has set."""

    keys: str = AUTO
    """Format of K: a name, "cache" for the cache's own, or "auto"."""
    values: str = AUTO
    allowed_loss: float = 0.0
    """Largest loss that "auto" may cause, nats; 0: lossless always."""


@value_class()
class WireEstimate:
    """In what K and V of a request travel (protos/baton/internal/v1/router_service.proto, WireEstimate)."""

    key_dtype: str
    value_dtype: str
    key_bytes: int
    """Bytes of K, scales included."""
    value_bytes: int
    """Bytes of V."""
    key_seconds: float
    value_seconds: float
    pack_seconds: float
    """Time to pack or unpack both, whichever node needs longer; beside the transfer."""
    loss: float
    """Expected loss, nats; 0: lossless."""
    reason: str
    state_bytes: int = 0
    """Bytes of states, which travel as they are."""
    state_seconds: float = 0.0


class WireChoice(NamedTuple):
    """In what K and V of one request travel, and what that takes."""

    keys: WireOption
    values: WireOption
    reason: WireReason
    state_bytes: int = 0
    """Bytes that travel besides, however many positions there are."""

    @property
    def token_bytes(self) -> int:
        """Return the bytes of one position."""
        return self.keys.key_bytes + self.values.value_bytes

    @property
    def loss(self) -> float:
        """Return the expected loss, nats."""
        return self.keys.key_loss + self.values.value_loss

    def transfer_seconds(self, num_tokens: int, bytes_per_second: float) -> float:
        """Return the time that link or packing need, whichever is slower: they run side by side, frame after frame."""
        rows = num_tokens * max(self.token_bytes / bytes_per_second, self.token_pack_seconds)
        return rows + self.state_bytes / bytes_per_second

    @property
    def token_pack_seconds(self) -> float:
        """Return the time to pack or unpack one position."""
        return self.keys.key_pack_seconds + self.values.value_pack_seconds

    def estimate(self, num_tokens: int, bytes_per_second: float) -> WireEstimate:
        """Return what it takes to send so many positions over a link of that rate."""
        key_bytes, value_bytes = num_tokens * self.keys.key_bytes, num_tokens * self.values.value_bytes
        return WireEstimate(
            key_dtype=self.keys.dtype,
            value_dtype=self.values.dtype,
            key_bytes=key_bytes,
            value_bytes=value_bytes,
            key_seconds=key_bytes / bytes_per_second,
            value_seconds=value_bytes / bytes_per_second,
            pack_seconds=num_tokens * self.token_pack_seconds,
            loss=self.loss,
            reason=self.reason.value,
            state_bytes=self.state_bytes,
            state_seconds=self.state_bytes / bytes_per_second,
        )


def choose_wire(
    options: Sequence[WireOption],
    policy: WirePolicy,
    *,
    num_tokens: int,
    bytes_per_second: float,
    compute_seconds: float,
) -> WireChoice:
    """Return in what K and V travel.

    Lossless where the transfer takes no longer than the computation that it hides behind. Else, of what is within the
    allowed loss: the least lossy that hides, or, where none does, the fastest. `options`: what the pair can do, 1 or
    more; the first is lossless, or a conversion that is allowed. `policy`: what the operator has set. `num_tokens`:
    positions that travel. `bytes_per_second`: rate of the link, above 0. `compute_seconds`: time of the prefill.
    """
    is_conversion = options[0].is_conversion
    own = WireChoice(options[0], options[0], WireReason.CONVERTED if is_conversion else WireReason.NO_OPTION)
    if policy.keys != AUTO or policy.values != AUTO:
        return _set_by_operator(options, policy, own)

    def seconds(choice: WireChoice) -> float:
        return choice.transfer_seconds(num_tokens, bytes_per_second)

    if seconds(own) <= compute_seconds:
        return WireChoice(own.keys, own.values, WireReason.CONVERTED if is_conversion else WireReason.KEEPS_UP)
    if len(options) == 1:
        return own
    if policy.allowed_loss <= 0:  # a measured loss of 0 is none on the calibration's tokens, and no promise
        return WireChoice(own.keys, own.values, WireReason.NO_LOSS_ALLOWED)
    choices = [WireChoice(keys, values, WireReason.NARROWED) for keys in options for values in options]
    allowed = [choice for choice in choices[1:] if choice.loss <= policy.allowed_loss]
    if not allowed:
        return WireChoice(own.keys, own.values, WireReason.NO_LOSS_ALLOWED)
    best = min(allowed, key=lambda choice: (max(seconds(choice), compute_seconds), choice.loss))
    if seconds(best) > (1 - LEAST_FORMAT_GAIN) * seconds(own):
        return WireChoice(own.keys, own.values, WireReason.NO_GAIN)
    return best


def _set_by_operator(options: Sequence[WireOption], policy: WirePolicy, own: WireChoice) -> WireChoice:
    """What is not possible travels lossless: no setting may cost more than it says."""
    by_name = {option.dtype: option for option in options} | {CACHE: own.keys, AUTO: own.keys}
    if policy.keys not in by_name or policy.values not in by_name:
        return WireChoice(own.keys, own.values, WireReason.SET_BUT_UNABLE)
    return WireChoice(by_name[policy.keys], by_name[policy.values], WireReason.SET)


class Stream(NamedTuple):
    """KV on its way, or about to be; what is not computed yet is taken to be so evenly over a time."""

    num_ready_bytes: float
    """What is computed and not sent."""
    num_later_bytes: float
    begin_seconds: float
    """When that begins, from now on; 0 or more."""
    end_seconds: float
    """When all is computed, from now on; `begin_seconds` or later."""
    sender_id: str
    receiver_id: str
    link_bytes_per_second: float = math.inf


def parted(streams: Iterable[Stream], node_id: str) -> tuple[list[Stream], list[Stream]]:
    """Part the streams of one node into those from or to another node, and those of other links."""
    on_link, others = list[Stream](), list[Stream]()
    for stream in streams:
        (on_link if node_id in (stream.sender_id, stream.receiver_id) else others).append(stream)
    return on_link, others


def slowdown(
    num_bytes: float,
    bytes_per_second: float,
    begin_seconds: float,
    compute_seconds: float,
    beside: Sequence[Stream],
    ahead: Sequence[Stream] = (),
    *,
    is_card: bool = False,
) -> float:
    """Return by what a stream takes longer over a resource than if it had it alone, 1 or more.

    Those `ahead`, earlier ones, go before it; to a receiver's card no faster than their links are. Links that have
    something to carry share the resource evenly, so what is ahead and the stream wait for no more of each other link
    than they are. A stream that is computed more slowly than the resource carries (its share s of the rate) leaves the
    rest to the others, and meets s / (1 - s) of what they carry. What the resource carries of all before the stream
    begins is not met. `num_bytes`: of the stream; 0 or more. `bytes_per_second`: rate of the resource, above 0.
    `begin_seconds`: when its first byte is ready, from now on. `compute_seconds`: time over which its bytes become
    ready. `beside`: of other links.
    """
    if num_bytes <= 0 or not (beside or ahead):
        return 1.0
    alone_seconds = num_bytes / bytes_per_second
    window_seconds = max(alone_seconds, compute_seconds)
    share = alone_seconds / window_seconds
    met = min(1.0, share / (1 - share)) if share < 1 else 1.0
    streams, num_ahead = (*ahead, *beside), len(ahead)
    early = [_computed_bytes(stream, begin_seconds) for stream in streams]
    num_early_bytes = sum(early)
    gone = min(1.0, bytes_per_second * begin_seconds / num_early_bytes) if num_early_bytes else 1.0
    waiting_seconds = 0.0
    for _ in range(2):  # the longer it takes, the more it meets
        carrying_seconds = window_seconds + waiting_seconds
        until_seconds = begin_seconds + carrying_seconds
        num_ahead_bytes, are_all_computed, of_link = 0.0, True, dict[tuple[str, str], float]()
        for index, stream in enumerate(streams):  # one loop with few calls: a fifth of a decision was spent here
            ready, later, _, end, sender_id, receiver_id, rate = stream
            num_computed_bytes = ready + later
            if until_seconds < end:
                are_all_computed, num_computed_bytes = False, _computed_bytes(stream, until_seconds)
            num_carried_bytes = num_computed_bytes - gone * early[index]
            if index >= num_ahead:
                link = sender_id, receiver_id
                of_link[link] = of_link.get(link, 0.0) + num_carried_bytes
            elif is_card and rate < bytes_per_second:
                num_ahead_bytes += min(num_carried_bytes, rate * carrying_seconds)
            else:
                num_ahead_bytes += num_carried_bytes
        num_met_bytes = sum([min(each, num_ahead_bytes + num_bytes) for each in of_link.values()])
        waiting_seconds = (num_ahead_bytes + met * num_met_bytes) / bytes_per_second
        if are_all_computed:
            break
    return 1.0 + waiting_seconds / alone_seconds


def _computed_bytes(stream: Stream, seconds: float) -> float:
    """Return what is computed of a stream by a moment, from now on, and not sent now."""
    ready, later, begin, end, *_ = stream
    if seconds >= end:
        return ready + later
    return ready if seconds <= begin else ready + later * ((seconds - begin) / (end - begin))
