"""What of a prompt a node need not compute: cached on its device or below it, or copied from another node. Pure."""

from __future__ import annotations

import math

from baton.capacity import cost
from baton.capacity.kv_transfer import group_sizes
from baton.capacity.snapshot import (
    DRAINING,
    ClusterSnapshot,
    LowerPrefix,
    NodeSnapshot,
    PlacementRequest,
    Restore,
    restores,
)
from baton.capacity.stream_sharing import StreamWindow, link_rates
from baton.capacity.value_class import value_class


@value_class()
class PrefixMatch:
    """A cached prefix on one node: [0, device_tokens) on the device; [device_tokens, num_tokens) to bring back."""

    device_tokens: int
    """Tokens whose KV a pass can read as it is."""
    restore: Restore = Restore()

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
        return restore.seconds + node.prefill_seconds(end, request.num_prompt_tokens)

    return PrefixMatch(num_cached, min(options, key=seconds))


FRAME_TOKENS = 512
"""Positions of one frame at most."""
MAX_FRAME_BYTES = 16 << 20
"""Largest frame made; groups of layers, then chunks of positions, shrink to stay below it."""
FRAMES_AHEAD = 4
"""Frames of a stream that are read ahead of the link at most, between two passes of the node."""
READ_SHARE = 0.1
"""Part of a generating node's time for which it reads blocks for others."""
READ_BYTES_PER_SECOND = 4e9
"""Rate of these reads, as long as outcomes have not taught what a pull from the node takes."""


@value_class()
class Pull:
    """One way to get a prefix."""

    node_id: str
    begin: int
    end: int
    """Position after the last one: what is computed begins here."""
    num_bytes: int
    """KV bytes that travel."""
    transfer_seconds: float
    seconds: float
    """From the call until the last of them is there."""
    layers_per_frame: int
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
    begin = match_prefix(request, decoder).num_tokens
    pulls = [
        pull
        for source in snapshot.nodes
        if source.node_id in snapshot.holder_ids
        and (pull := _pull(snapshot, request, source, decoder, begin)) is not None
    ]

    def seconds(pull: Pull) -> float:
        return pull.seconds + decoder.prefill_seconds(pull.end, request.num_prompt_tokens)

    return min(pulls, key=lambda pull: (seconds(pull), pull.node_id), default=None)


def _pull(
    snapshot: ClusterSnapshot, request: PlacementRequest, source: NodeSnapshot, decoder: NodeSnapshot, begin: int
) -> Pull | None:
    block_tokens = decoder.block_tokens
    end = min(request.pullable_from(source.node_id), request.num_prompt_tokens - 1) // block_tokens * block_tokens
    is_usable = source.unusable_reason in ("", DRAINING) and source.node_id not in request.excluded_node_ids
    is_usable = is_usable and source.serves_blocks
    if source.node_id == decoder.node_id or end <= begin or source.block_tokens != block_tokens or not is_usable:
        return None
    link = snapshot.link(source.node_id, decoder.node_id)
    if link.mismatch or link.has_unlike_caches:  # a pull names no format
        return None
    num_bytes = (end - begin) * decoder.shape.kv_bytes_per_token
    transfer = num_bytes / link_rates(source, decoder, link, StreamWindow(num_bytes, 0.0, 0.0)).shared
    stream, group = _best_stream(source, end - begin, transfer)
    return Pull(
        node_id=source.node_id,
        begin=begin,
        end=end,
        num_bytes=num_bytes,
        transfer_seconds=transfer,
        seconds=link.round_trip_seconds + stream,
        layers_per_frame=group,
        is_link_declared=not link.is_measured,
        link_spread=link.spread,
    )


def _best_stream(source: NodeSnapshot, num_tokens: int, transfer_seconds: float) -> tuple[float, int]:
    """Return the time of the shortest stream, and its group of layers: all, halved again and again; the largest wins.

    Frames are read ahead of the link, between two passes of the node. An idle node is taken to read as fast as the
    link carries, so only the first frame's way is not hidden; one that generates gives a share of its time.
    """
    num_layers, token_bytes = source.shape.num_layers, source.shape.kv_bytes_per_token
    layer_bytes = min(num_tokens, FRAME_TOKENS) * token_bytes / num_layers
    turn_seconds = _pass_seconds(source) / FRAMES_AHEAD
    num_bytes = num_tokens * token_bytes
    reading_seconds = num_bytes / (READ_SHARE * READ_BYTES_PER_SECOND) if source.load.num_running else 0.0
    best_seconds, best_size = math.inf, 1
    for size in group_sizes(num_layers):
        if size > 1 and size * layer_bytes > MAX_FRAME_BYTES:
            continue
        num_frames = math.ceil(num_tokens / FRAME_TOKENS) * math.ceil(num_layers / size)
        stream = max(transfer_seconds * (1 + 1 / num_frames), num_frames * turn_seconds, reading_seconds)
        stream += num_frames * cost.FRAME_OVERHEAD_SECONDS
        if stream < best_seconds:
            best_seconds, best_size = stream, size
    return best_seconds, best_size


def _pass_seconds(source: NodeSnapshot) -> float:
    """Return the time of a pass of a node, between two of which it reads; 0: it is idle."""
    load = source.load
    if not load.num_running:
        return 0.0
    return cost.step_seconds(source.shape, source.profile, load.num_running, load.mean_context_tokens)
