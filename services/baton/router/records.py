"""What nodes tell the router, as values."""

from __future__ import annotations

from dataclasses import dataclass

from baton.capacity.model_shape import ModelShape
from baton.capacity.profile import NodeProfile
from baton.capacity.snapshot import NodeRole
from baton.capacity.tiers import TierRates
from baton.capacity.wire import WireAbility
from baton.kv.adapter import Adapter
from baton.kv.layout import KvLayout
from baton.v1.node_pb2 import SystemSample


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """One node (protos/baton/v1/node.proto, NodeDescription)."""

    node_id: str
    """Unique and stable over restarts."""
    epoch: int
    """Greater for every later start of the process."""
    role: NodeRole
    """What it serves."""
    address: str
    """host:port of its gRPC server."""
    engine: str
    """"torch", "mlx" or "mock"."""
    device: str
    """Device in words."""
    model_id: str
    """Served name of the model."""
    layout: KvLayout
    """What its KV cache looks like."""
    shape: ModelShape
    """Size of its model."""
    profile: NodeProfile
    """Speed as the node measured it."""
    profile_source: str
    """"measured" or "declared"."""
    num_blocks: int
    """KV blocks in its pool."""
    block_tokens: int
    """Tokens of one block."""
    max_batch_size: int
    """Requests decoded together at most."""
    tokenizer_digest: str
    """Digest of chat template and tokenizer."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end a generation."""
    fast_address: str = ""
    """host:port of its fast path for KV; empty: it offers none."""
    wire_abilities: tuple[WireAbility, ...] = ()
    """Number formats besides its cache's own in which it can send or receive KV."""
    is_cache_private: bool = False
    """Whether its prefix cache is for itself alone, because what it holds is rounded."""
    adapters: tuple[Adapter, ...] = ()
    """What it has loaded besides the model."""
    max_step_tokens: int = 0
    """Positions that it computes in one pass; 0: not known."""
    num_blocks_cause: str = ""
    """Why its pool has so many blocks, in words; empty: not told."""

    def lack_of(self, adapter: Adapter | None) -> str:
        """Return why it cannot compute with an adapter; empty if it can, or none is wanted."""
        if adapter is None or adapter in self.adapters:
            return ""
        if any(own.name == adapter.name for own in self.adapters):
            return f"adapter {adapter.name} has other weights"
        return f"adapter {adapter.name} is not loaded"


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a node is doing (protos/baton/v1/node.proto, LoadReport)."""

    num_waiting: int
    """Requests that wait for their first computation."""
    num_running: int
    """Requests in the batch."""
    num_pending_prompt_tokens: int
    """Prompt tokens not yet computed."""
    num_free_blocks: int
    """Blocks that are free or hold only unreferenced cache."""
    mean_context_tokens: float
    """Mean context of the running requests."""
    step_count: int
    """Engine steps since start."""
    is_draining: bool
    """Whether it takes no new requests."""
    accepted_placement_ids: tuple[str, ...] = ()
    """Placements whose requests it has accepted since the last report."""

    system: SystemSample | None = None
    """What its machine's sensors said, as it came: the router only shows it."""
    tier_rates: TierRates = TierRates()
    """How fast blocks come back from below its device."""
    is_sparing_memory: bool = False
    """Whether it admits nobody beside others, for its memory is short."""

    @property
    def has_work(self) -> bool:
        """Return whether the engine ought to be stepping. A request that waits for KV from elsewhere needs no step."""
        return self.num_running > 0 or self.num_pending_prompt_tokens > 0


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """Rate of the link into the reporting decode node."""

    from_node_id: str
    """The sending node."""
    bytes_per_second: float
    """Payload rate, above 0."""
    round_trip_seconds: float
    """Round-trip time of an empty call."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened to a placed request, measured (protos/baton/v1/generation.proto, PlacementSummary)."""

    placement_id: str
    """Router's name for the decision."""
    decode_node_id: str
    """Node that decoded."""
    prefill_node_id: str
    """Node that computed the prompt; the decode node where it did so itself."""
    prefill_cached_tokens: int
    """Prompt tokens that were not computed because the computing node had them."""
    kv_bytes: int
    """KV bytes received."""
    queue_seconds: float
    """Until the prompt's computation began."""
    prefill_seconds: float
    """From the start of the prompt's computation to the first token."""
    transfer_seconds: float
    """Time that the link was busy with this request."""
    exposed_seconds: float
    """Part of it after the first token existed."""
    decode_seconds: float
    """From the first to the last token."""
    num_completion_tokens: int
    """Tokens generated; 0: not reported."""
    num_preemptions: int
    """Times that it was computed again for want of memory."""
    fallback_reason: str
    """Why a planned remote prefill was given up; empty if it was not."""
    num_breaks: int = 0
    """KV streams that broke: its times are then those of the repair, and say nothing of node or link."""
    pull_node_id: str = ""
    """Node from whose cache the prompt's beginning was asked; empty: none. Bytes and transfer are then of that."""
    pulled_tokens: int = 0
    """Prompt tokens that came from there."""
    pull_seconds: float = 0.0
    """Time from asking for them until they were here; no part of `prefill_seconds`."""
