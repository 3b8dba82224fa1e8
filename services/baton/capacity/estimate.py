"""What one candidate would cost, term by term, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


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
    restore_seconds: float = 0.0
    """Until cached positions are back on their device, as far as the queue does not hide it; both nodes together."""

    @property
    def decode_seconds(self) -> float:
        """Return the time of the expected output's steps."""
        return self.expected_output_tokens * self.step_seconds

    @property
    def total_seconds(self) -> float:
        """Return start + decode + imposed: what placements are compared by."""
        return self.start_seconds + self.decode_seconds + self.imposed_seconds


@dataclass(frozen=True, slots=True)
class WireEstimate:
    """In what K and V of a request travel (protos/baton/v1/router_service.proto, WireEstimate)."""

    key_dtype: str
    """Number format of K."""
    value_dtype: str
    """Number format of V."""
    key_bytes: int
    """Bytes of K, scales included."""
    value_bytes: int
    """Bytes of V."""
    key_seconds: float
    """Time that the link needs for K."""
    value_seconds: float
    """Time that the link needs for V."""
    pack_seconds: float
    """Time to pack or unpack both, whichever node needs longer; beside the transfer."""
    loss: float
    """Expected loss, nats; 0: lossless."""
    reason: str
    """Why, in words."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run a request; it has either an estimate or a reason why it cannot."""

    decode_node_id: str
    """Node that would decode."""
    prefill_node_id: str
    """Node that would compute the prompt; empty: the decode node itself."""
    decode_cached_tokens: int = 0
    """Prompt tokens expected in the decode node's prefix cache, wherever it keeps them."""
    prefill_cached_tokens: int = 0
    """Prompt tokens expected in the prefill node's prefix cache, wherever it keeps them."""
    kv_bytes: int = 0
    """KV bytes that it would send, scales included."""
    layers_per_frame: int = 0
    """Layers of one KV frame; 0 for a local prefill."""
    estimate: CostEstimate | None = None
    """Its terms; None if infeasible."""
    is_link_declared: bool = False
    """Whether the link's rate is the declared default, because nobody has measured it."""
    infeasible_reason: str = ""
    """Why it cannot run the request; empty if it can."""
    wire: WireEstimate | None = None
    """In what K and V would travel; None for a local prefill."""
    pull_node_id: str = ""
    """Node from whose prefix cache the prompt's beginning would come; empty: none. `kv_bytes` are then those."""
    pulled_tokens: int = 0
    """Prompt tokens that would come from there."""
    chunk_tokens: int = 0
    """Positions that the prefill node computes in one pass at most; 0: it decides."""
    decode_restored_tokens: int = 0
    """How many of `decode_cached_tokens` the decode node brings back to its device from host memory or disk."""
    prefill_restored_tokens: int = 0
    """How many of `prefill_cached_tokens` the prefill node brings back."""

    @property
    def is_local(self) -> bool:
        """Return whether the decode node computes the prompt itself."""
        return not self.prefill_node_id

    @property
    def rank(self) -> tuple[float, bool, bool, str, str]:
        """Return the order of preference: least total, local before remote, then by ids; the infeasible come last."""
        total = self.estimate.total_seconds if self.estimate else float("inf")
        return (total, not self.is_local, bool(self.pull_node_id), self.decode_node_id, self.prefill_node_id)
