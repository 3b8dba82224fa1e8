"""What placement decides upon: nodes, links and one request, frozen at one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from baton.capacity.model_shape import ModelShape
from baton.capacity.profile import NodeProfile
from baton.capacity.tiers import LowerPrefix, TierRates
from baton.capacity.wire import WireOption, WirePolicy

NodeRole = Literal["prefill", "decode"]
"""What a node can be asked for."""


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """Work on a node: its last report plus the placements that it has not reported yet."""

    num_waiting: int = 0
    """Requests that wait for their first computation."""
    num_running: int = 0
    """Requests in the batch."""
    num_pending_prompt_tokens: int = 0
    """Prompt tokens not yet computed."""
    num_free_blocks: int = 0
    """Blocks that are free or hold only unreferenced cache; assumed placements may bring it below 0."""
    mean_context_tokens: float = 0.0
    """Mean context of the running requests."""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node at one moment."""

    node_id: str
    """Its id."""
    role: NodeRole
    """What it serves."""
    shape: ModelShape
    """Size of its model."""
    profile: NodeProfile
    """Its speed, corrected by outcomes."""
    num_blocks: int
    """KV blocks in its pool."""
    block_tokens: int
    """Tokens of one block."""
    max_batch_size: int
    """Requests decoded together at most, 1 or more."""
    load: NodeLoad
    """Its work."""
    unusable_reason: str = ""
    """Why it takes no requests (draining, stuck, silent); empty if it does."""
    max_step_tokens: int = 0
    """Positions that it computes in one pass; 0: not known."""
    serves_blocks: bool = True
    """Whether other nodes may take blocks from its prefix cache."""
    tier_rates: TierRates = TierRates()
    """How fast blocks come back from below its device."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    """In what KV may travel."""
    holder_ids: Collection[str] = frozenset()
    """Nodes from whose prefix caches something may be pulled; the links from them are among `links`."""

    def link(self, sender_id: str, decode_node_id: str) -> Link:
        """Return the link of a pair, the declared one if it is not known."""
        return self.links.get((sender_id, decode_node_id), self.default_link)


class NodePair(NamedTuple):
    """Where a request may run."""

    decode_node_id: str
    """Decode node."""
    prefill_node_id: str
    """Prefill node; empty: the decode node computes the prompt itself."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """One request to place."""

    num_prompt_tokens: int
    """Tokens of the prompt, 1 or more."""
    max_tokens: int
    """Largest number of tokens still to generate, 1 or more."""
    cached_tokens: Mapping[str, int] = field(default_factory=dict)
    """Prompt tokens in each node's prefix cache, on its device, by node id."""
    excluded_node_ids: frozenset[str] = frozenset()
    """Nodes not to use."""
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
