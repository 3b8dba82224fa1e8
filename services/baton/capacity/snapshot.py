"""What placement decides upon: nodes, links and one request, frozen at one moment, and what a node can take. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from typing import Literal, NamedTuple

from baton.capacity.cost import (
    EMPTY_QUEUE,
    FRAME_OVERHEAD_SECONDS,
    Beside,
    ModelShape,
    NodeProfile,
    PromptQueue,
    prefill_seconds,
)
from baton.capacity.kv_transfer import Stream, WireOption, WirePolicy
from baton.capacity.value_class import value_class

HOST_BYTES_PER_SECOND = 4e9
"""Rate of copies from host memory to a device, as long as the node has measured none."""
DISK_BYTES_PER_SECOND = 1e9
"""Rate of reading blocks from disk, as long as the node has measured none."""


class TierRates(NamedTuple):
    """How fast blocks come back to a node's device (protos/baton/internal/v1/node.proto, TierRates)."""

    host_bytes_per_second: float = 0.0
    """Copies between host memory and device; 0: not measured."""
    disk_bytes_per_second: float = 0.0
    """Reading from disk into host memory; 0: not measured."""
    max_read_blocks: int = 0
    """Blocks of one run of which some are read from disk, at most; 0: nothing is read."""


class LowerPrefix(NamedTuple):
    """Prompt tokens after those on a node's device that it could bring back; see `baton.kv.hashing.HeldPrefix`."""

    host_tokens: int = 0
    """The first of them, all in host memory."""
    num_tokens: int = 0
    """All, in host memory or on disk."""
    disk_tokens: int = 0
    """Of all, on disk only."""


class Restore(NamedTuple):
    """Cached tokens that a node brings back, and what that takes."""

    num_tokens: int = 0
    """How many, after those on the device."""
    read_seconds: float = 0.0
    """Reading from disk, while others are computed."""
    copy_seconds: float = 0.0
    """Copying to the device, which computes nothing meanwhile."""

    @property
    def seconds(self) -> float:
        """Return the time of both, for a request that waits for nothing else."""
        return self.read_seconds + self.copy_seconds


def restores(lower: LowerPrefix, rates: TierRates, *, block_tokens: int, token_bytes: int) -> list[Restore]:
    """Return what could be brought back: nothing, what is in host memory, or all."""
    host_rate = rates.host_bytes_per_second or HOST_BYTES_PER_SECOND
    disk_rate = rates.disk_bytes_per_second or DISK_BYTES_PER_SECOND

    def restore(num_tokens: int, disk_tokens: int) -> Restore:
        return Restore(num_tokens, disk_tokens * token_bytes / disk_rate, num_tokens * token_bytes / host_rate)

    found = [Restore()]
    if lower.host_tokens:
        found.append(restore(lower.host_tokens, 0))
    num_tokens = min(lower.num_tokens, rates.max_read_blocks * block_tokens)
    if num_tokens > lower.host_tokens:
        found.append(restore(num_tokens, min(lower.disk_tokens, num_tokens - lower.host_tokens)))
    return found


NodeRole = Literal["prefill", "decode", "worker"]
"""What a node can be asked for; worker: both."""


def can_prefill(role: NodeRole) -> bool:
    """Return whether nodes of a role compute prompts for others."""
    return role != "decode"


def can_decode(role: NodeRole) -> bool:
    """Return whether nodes of a role generate; they compute prompts for themselves."""
    return role != "prefill"


class QueuedPrompt(NamedTuple):
    """A prompt that a node computes or is going to (protos/baton/internal/v1/node.proto, QueuedPrompt)."""

    placement_id: str
    """The request's placement; empty: it has none."""
    num_done_tokens: int
    """Leading positions whose KV exists, or did when the prompt came; they need not be computed."""
    num_left_tokens: int
    """Positions after them that are to be computed."""


_NAME = re.compile(r"([0-9a-f]{16})([0-9a-f]{16})")
"""Of a placement: its router, and the moment in nanoseconds, of a clock of the router's own (`router/placer.py`)."""


def seconds_between(first: str, second: str) -> float | None:
    """Return how long after one placement its router made another; None: of two routers, or not its names."""
    one, other = _NAME.fullmatch(first), _NAME.fullmatch(second)
    if one is None or other is None or one[1] != other[1]:
        return None
    return (int(other[2], 16) - int(one[2], 16)) / 1e9


@value_class()
class NodeLoad:
    """Work on a node: its last report plus the placements that it has not reported yet."""

    num_waiting: int = 0
    """Requests that wait for their first computation."""
    num_running: int = 0
    num_pending_prompt_tokens: int = 0
    num_free_blocks: int = 0
    """Blocks that are free or hold only unreferenced cache, less those that who waits will take; may be below 0."""
    mean_context_tokens: float = 0.0
    """Mean context of the running requests that generate here."""
    queued_prompts: tuple[QueuedPrompt, ...] = ()
    """Prompts still to compute, in order of turns; the first ones, where there are many."""
    landing_bytes_per_second: float = 0.0
    """Rate of writing received KV into the device's memory; 0: not measured."""
    num_landing_bytes: int = 0
    """KV received and not yet written there."""
    reading_bytes_per_second: float = 0.0
    """Rate of reading cached KV for other nodes; 0: not measured."""
    num_decoding: int = 0
    """Of `num_running`, those that generate there and whose prompt is computed."""
    num_exports: int = 0
    """Of `num_running` and `num_waiting`, those that the node computes the prompt of for another, and never decodes."""

    @property
    def num_generating(self) -> int:
        """Return how many requests decode there, or will."""
        return max(self.num_decoding, self.num_running + self.num_waiting - self.num_exports)


class TermSpread(NamedTuple):
    """How far outcomes of a node lay from their estimates: standard deviation of the logarithm of the ratio."""

    queue: float = 0.0
    prefill: float = 0.0
    step: float = 0.0


@value_class()
class NodeSnapshot:
    """One node at one moment."""

    node_id: str
    role: NodeRole
    shape: ModelShape
    profile: NodeProfile
    """Its speed, corrected by outcomes."""
    num_blocks: int
    block_tokens: int
    max_batch_size: int
    """Requests decoded together at most, 1 or more."""
    load: NodeLoad
    unusable_reason: str = ""
    """Why it takes no requests (draining, stuck, silent); empty if it does."""
    max_step_tokens: int = 0
    """Positions that it computes in one pass; 0: not known."""
    serves_blocks: bool = True
    """Whether other nodes may take blocks from its prefix cache."""
    tier_rates: TierRates = TierRates()
    """How fast blocks come back from below its device."""
    device_id: str = ""
    """Equal for nodes that compute on the same device of the same machine; empty: a device of its own."""
    queue: PromptQueue = EMPTY_QUEUE
    """Prompts that it, and what shares its device, has still to compute."""
    arrivals_per_second: float = 0.0
    """Requests of late that came to decode there."""
    arrival_seconds: float = 0.0
    """Mean time from their placement until they decoded, as estimated."""
    prompts_per_second: float = 0.0
    """Prompts of late that came to be computed there."""
    prompt_share: float = 0.0
    """What they take it, as a part of its time; above 1 where it falls behind."""
    sending: tuple[Stream, ...] = ()
    receiving: tuple[Stream, ...] = ()
    send_bytes_per_second: float = 0.0
    """Rate of its network card outwards, as far as it is known; 0: no limit beside its links."""
    receive_bytes_per_second: float = 0.0
    """The same inwards."""
    spread: TermSpread = TermSpread()
    """How far its outcomes lay from their estimates."""
    last_used: int = 0
    """Number of the last placement that used it; 0: none has."""
    at_seconds: float = 0.0
    """Moment of which queue and streams are, by the clock of `ClusterSnapshot.now_seconds`."""

    @property
    def can_prefill(self) -> bool:
        """Return whether it computes prompts for others."""
        return can_prefill(self.role)

    @property
    def can_decode(self) -> bool:
        """Return whether it generates."""
        return can_decode(self.role)

    def prefill_seconds(self, cached_tokens: int, num_prompt_tokens: int) -> float:
        """Return the time for positions [cached_tokens, num_prompt_tokens) of a prompt, beside those that decode."""
        beside = Beside(min(self.load.num_generating, self.max_batch_size), self.load.mean_context_tokens)
        return prefill_seconds(self.shape, self.profile, cached_tokens, num_prompt_tokens, self.max_step_tokens, beside)


@value_class()
class Link:
    """The way from one node to a decode node."""

    bytes_per_second: float
    """Payload rate, above 0."""
    round_trip_seconds: float
    """Round-trip time of an empty call."""
    is_measured: bool = False
    """Whether the rate was measured rather than declared."""
    mismatch: str = ""
    """Why the two nodes cannot exchange KV; empty if they can."""
    wires: tuple[WireOption, ...] = ()
    """In what they can exchange it, the cache's own format first; empty: in that alone."""
    has_unlike_caches: bool = False
    """Whether their caches have different formats, so that KV is converted."""
    frame_seconds: float = FRAME_OVERHEAD_SECONDS
    """That a frame takes besides its bytes to be sent and received; at least as long as by default."""
    spread: float = 0.0
    """How far transfers over it lay from their estimates, as in `TermSpread`."""


DECLARED_LINK = Link(bytes_per_second=1.25e9, round_trip_seconds=1e-3)
"""What links count with that nobody has measured, unless the operator declares another rate."""


@value_class()
class ClusterSnapshot:
    """All nodes of one model, and their links."""

    nodes: tuple[NodeSnapshot, ...]
    """In any order; ids are unique."""
    default_link: Link
    """Declared figures for pairs that nobody has measured."""
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)
    """By (sending node id, decode node id)."""
    expected_output_tokens: float | None = None
    """Mean output of recent requests; None: none yet."""
    wire_policy: WirePolicy = WirePolicy()
    holder_ids: Collection[str] = frozenset()
    """Nodes from whose prefix caches something may be pulled; the links from them are among `links`."""
    now_seconds: float = 0.0
    """The moment; nodes may be of an earlier one."""
    current: Callable[[NodeSnapshot], NodeSnapshot] = field(default=lambda node: node)

    def link(self, sender_id: str, decode_node_id: str) -> Link:
        """Return the link of a pair, the declared one if it is not known."""
        return self.links.get((sender_id, decode_node_id), self.default_link)


class NodePair(NamedTuple):
    """Where a request may run."""

    decode_node_id: str
    prefill_node_id: str
    """Prefill node; empty: the decode node computes the prompt itself."""


@value_class()
class PlacementRequest:
    """One request to place."""

    num_prompt_tokens: int
    """Tokens of the prompt, 1 or more."""
    max_tokens: int
    """Largest number of tokens still to generate, 1 or more."""
    cached_tokens: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens in each node's prefix cache, on its device, by node id."""
    excluded_node_ids: frozenset[str] = frozenset()
    pins: frozenset[NodePair] = frozenset()
    """The only pairs that may be chosen; none: any."""
    needs_local_prefill: bool = False
    """Whether the prompt must be computed on the decode node, because its log-probabilities are wanted."""
    lower_tokens: Mapping[str, LowerPrefix] = field(default_factory=dict)
    """Those after `cached_tokens` that nodes could bring back to their devices, by node id."""

    def cached_on(self, node: NodeSnapshot) -> int:
        """Return the prompt tokens on a node's device, but for the last one: it is computed, for its logits."""
        return min(self.cached_tokens.get(node.node_id, 0), self.num_prompt_tokens - 1)

    def pullable_from(self, node_id: str) -> int:
        """Return the prompt tokens that others may take from a node's cache: on its device and in its host memory."""
        return self.cached_tokens.get(node_id, 0) + self.lower_tokens.get(node_id, LowerPrefix()).host_tokens


DRAINING = "draining"
"""Why a node takes no requests that shuts down; until it has, others take from its prefix cache what they take over."""
DEFAULT_OUTPUT_TOKENS = 256
"""Output counted on where no request has finished yet."""


def expected_output_tokens(request: PlacementRequest, node: NodeSnapshot, mean_output_tokens: float | None) -> float:
    """Return the output to count on: the recent mean (256 without one), within what request and context allow."""
    room = min(request.max_tokens, max(1, node.shape.max_context_tokens - request.num_prompt_tokens))
    mean = DEFAULT_OUTPUT_TOKENS if mean_output_tokens is None else mean_output_tokens
    return max(1.0, min(float(room), mean))


def infeasible_reason(node: NodeSnapshot, request: PlacementRequest, num_tokens: int) -> str:
    """Return why `node` can never hold `num_tokens` positions of a request, or not now; empty if it can.

    A full pool is no reason: the request waits in the node's queue, which costs time (`room_seconds`).
    """
    if node.node_id in request.excluded_node_ids:
        return f"{node.node_id}: excluded by the request"
    if node.unusable_reason:
        return f"{node.node_id}: {node.unusable_reason}"
    if request.num_prompt_tokens >= node.shape.max_context_tokens:
        return f"{node.node_id}: context is {node.shape.max_context_tokens} tokens"
    if blocks_for(node, num_tokens) > node.num_blocks:
        return f"{node.node_id}: needs {blocks_for(node, num_tokens)} blocks, has {node.num_blocks}"
    return ""


def blocks_for(node: NodeSnapshot, num_tokens: int) -> int:
    """Return the blocks that `num_tokens` positions take."""
    return math.ceil(num_tokens / node.block_tokens)


def room_seconds(node: NodeSnapshot, num_new_blocks: int, output_seconds: float) -> float:
    """Return the time until the batch has a slot and the pool has `num_new_blocks` free.

    Running requests are taken to end evenly spread over `output_seconds`, each giving back a slot and its share of
    the blocks, none before it ends.
    """
    num_on_node = node.load.num_running + node.load.num_waiting
    missing_slots = max(0, num_on_node + 1 - node.max_batch_size) / node.max_batch_size
    num_missing_blocks = max(0, num_new_blocks - node.load.num_free_blocks)
    num_held_blocks = max(1, node.num_blocks - max(0, node.load.num_free_blocks))
    num_running = max(1, node.load.num_running)
    num_ending = math.ceil(num_missing_blocks * num_running / num_held_blocks)
    return output_seconds * max(missing_slots, num_ending / num_running)


def neighbours(node: NodeSnapshot, decode_seconds: float) -> float:
    """Return how many requests a further one decodes with on average, if each decodes for so long.

    With T = `decode_seconds` and W = the time from a placement until it decodes: those that decode end evenly over T,
    so (1 - W/T)²/2 of them are met; those that have been placed begin evenly over W, and all come before this one;
    later ones come at the rate of late, T/2 seconds of them. Where requests come and go at one rate that is the number
    that there are.
    """
    load, lag = node.load, node.arrival_seconds
    if decode_seconds <= 0:
        return 0.0
    if lag <= decode_seconds:
        running = (1 - lag / decode_seconds) ** 2 / 2
        placed = 1 - lag / (2 * decode_seconds)
    else:
        running, placed = 0.0, decode_seconds / (2 * lag)
    num_placed = load.num_generating - load.num_decoding
    met = running * load.num_decoding + placed * num_placed + node.arrivals_per_second * decode_seconds / 2
    return min(met, node.max_batch_size - 1.0)
