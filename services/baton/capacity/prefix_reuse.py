"""What of a prompt a node need not compute: cached on its device or below it, or copied from another node. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from baton.capacity import cost
from baton.capacity.contention import slowdown
from baton.capacity.kv_transfer import group_sizes
from baton.capacity.snapshot import ClusterSnapshot, LowerPrefix, NodeSnapshot, PlacementRequest, Restore, restores


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The prefix of a prompt that one node has cached.

    Interval table: [0, device_tokens) on the device; [device_tokens, num_tokens) is brought back there.
    """

    device_tokens: int
    """Tokens whose KV a pass can read as it is."""
    restore: Restore = Restore()
    """What follows."""

    @property
    def num_tokens(self) -> int:
        """Return the tokens that are not computed."""
        return self.device_tokens + self.restore.num_tokens


def match_prefix(request: PlacementRequest, node: NodeSnapshot) -> PrefixMatch:
    """Return what a node does with what it holds of a prompt: it brings back what takes it less than computing it.

    A node decides so whoever computes the prompt in the end, and whatever it waits for.
    """
    num_cached, lower = request.cached_on(node), request.lower_tokens.get(node.node_id)
    if lower is None:
        return PrefixMatch(num_cached)
    room = (request.num_prompt_tokens - 1) // node.block_tokens * node.block_tokens - num_cached
    options = restores(
        LowerPrefix(*(min(count, max(0, room)) for count in lower)),
        node.tier_rates,
        block_tokens=node.block_tokens,
        token_bytes=node.shape.kv_bytes_per_token,
    )

    def seconds(restore: Restore) -> float:
        end = num_cached + restore.num_tokens
        return restore.seconds + cost.prefill_seconds(node.shape, node.profile, end, request.num_prompt_tokens)

    return PrefixMatch(num_cached, min(options, key=seconds))


FRAME_TOKENS = 512
"""Positions of one frame at most."""
MAX_FRAME_BYTES = 16 << 20
"""Largest frame made of several layers."""
FRAMES_AHEAD = 4
"""Frames of a stream that are read ahead of the link at most, between two passes of the node."""
READ_SHARE = 0.1
"""Part of a generating node's time for which it reads blocks for others."""
READ_BYTES_PER_SECOND = 4e9
"""Rate of these reads, as long as outcomes have not taught what a pull from the node takes."""


@dataclass(frozen=True, slots=True)
class Pull:
    """One way to get a prefix."""

    node_id: str
    """Node that has it."""
    begin: int
    """First position that would travel."""
    end: int
    """Position after the last one: what is computed begins here."""
    num_bytes: int
    """KV bytes that travel."""
    transfer_seconds: float
    """Time that the link needs for them."""
    seconds: float
    """From the call until the last of them is there."""
    layers_per_frame: int
    """Layers of one frame."""
    is_link_declared: bool
    """Whether the link's rate is the declared default."""
    link_spread: float = 0.0
    """`Link.spread` of the way."""

    @property
    def num_tokens(self) -> int:
        """Return the positions that travel."""
        return self.end - self.begin


def best_pull(snapshot: ClusterSnapshot, request: PlacementRequest, decoder: NodeSnapshot) -> Pull | None:
    """Return the pull after which a decode node has the least time before it; None: nobody has what it lacks.

    Whole blocks travel, none of them the last position's. All that a node has is taken: a position costs the link the
    same wherever it is, and the computation the more the further back it is. What is in the
    host memory of a node is there for others as what is on its device; what is on its disk is not.
    """
    if request.needs_local_prefill or request.pins or not snapshot.holder_ids:
        return None
    pulls = [
        pull
        for source in snapshot.nodes
        if source.node_id in snapshot.holder_ids and (pull := _pull(snapshot, request, source, decoder)) is not None
    ]

    def seconds(pull: Pull) -> float:
        return pull.seconds + cost.prefill_seconds(decoder.shape, decoder.profile, pull.end, request.num_prompt_tokens)

    return min(pulls, key=lambda pull: (seconds(pull), pull.node_id), default=None)


def _pull(
    snapshot: ClusterSnapshot, request: PlacementRequest, source: NodeSnapshot, decoder: NodeSnapshot
) -> Pull | None:
    block_tokens, begin = decoder.block_tokens, match_prefix(request, decoder).num_tokens
    end = min(request.pullable_from(source.node_id), request.num_prompt_tokens - 1) // block_tokens * block_tokens
    is_usable = source.serves_blocks and not source.unusable_reason and source.node_id not in request.excluded_node_ids
    if source is decoder or end <= begin or source.block_tokens != block_tokens or not is_usable:
        return None
    link = snapshot.link(source.node_id, decoder.node_id)
    if link.mismatch or link.has_unlike_caches:  # a pull names no format
        return None
    num_bytes = (end - begin) * decoder.shape.kv_bytes_per_token
    shared = slowdown(num_bytes, link.bytes_per_second, 0.0, 0.0, (*source.sending, *decoder.receiving))
    transfer = cost.transfer_seconds(num_bytes, link.bytes_per_second) * shared
    group = _layers_per_frame(source, end - begin, transfer)
    return Pull(
        node_id=source.node_id,
        begin=begin,
        end=end,
        num_bytes=num_bytes,
        transfer_seconds=transfer,
        seconds=link.round_trip_seconds + _stream_seconds(source, end - begin, transfer, group),
        layers_per_frame=group,
        is_link_declared=not link.is_measured,
        link_spread=link.spread,
    )


def _layers_per_frame(source: NodeSnapshot, num_tokens: int, transfer_seconds: float) -> int:
    """Return the group size of the shortest stream, of the number of layers halved again and again."""
    num_layers, token_bytes = source.shape.num_layers, source.shape.kv_bytes_per_token
    layer_bytes = min(num_tokens, FRAME_TOKENS) * token_bytes / num_layers
    fitting = [size for size in group_sizes(num_layers) if size == 1 or size * layer_bytes <= MAX_FRAME_BYTES]
    return min(fitting, key=lambda size: _stream_seconds(source, num_tokens, transfer_seconds, size))


def _stream_seconds(source: NodeSnapshot, num_tokens: int, transfer_seconds: float, layers_per_frame: int) -> float:
    """Return the time of a stream: frames are read ahead of the link, between two passes of the node.

    An idle node is taken to read as fast as the link carries, so only the first frame's way is not hidden; one that
    generates gives a share of its time.
    """
    num_frames = math.ceil(num_tokens / FRAME_TOKENS) * math.ceil(source.shape.num_layers / layers_per_frame)
    turns_seconds = num_frames / FRAMES_AHEAD * _pass_seconds(source)
    num_bytes = num_tokens * source.shape.kv_bytes_per_token
    reading_seconds = num_bytes / (READ_SHARE * READ_BYTES_PER_SECOND) if source.load.num_running else 0.0
    stream = max(transfer_seconds * (1 + 1 / num_frames), turns_seconds, reading_seconds)
    return stream + num_frames * cost.FRAME_OVERHEAD_SECONDS


def _pass_seconds(source: NodeSnapshot) -> float:
    """Return the time of a pass of a node, between two of which it reads; 0: it is idle."""
    load = source.load
    if not load.num_running:
        return 0.0
    return cost.step_seconds(source.shape, source.profile, load.num_running, load.mean_context_tokens)
