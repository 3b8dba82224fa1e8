"""What of a prompt a node need not compute, on its device or below it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from baton.capacity import cost
from baton.capacity.snapshot import NodeSnapshot, PlacementRequest
from baton.capacity.tiers import LowerPrefix, Restore, restores


@dataclass(frozen=True, slots=True)
class Beginning:
    """The beginning of a prompt on one node.

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


def beginning_of(request: PlacementRequest, node: NodeSnapshot) -> Beginning:
    """Return what a node does with what it holds of a prompt: it brings back what takes it less than computing it.

    A node decides so whoever computes the prompt in the end, and whatever it waits for.
    """
    num_cached, lower = request.cached_on(node), request.lower_tokens.get(node.node_id)
    if lower is None:
        return Beginning(num_cached)
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

    return Beginning(num_cached, min(options, key=seconds))
