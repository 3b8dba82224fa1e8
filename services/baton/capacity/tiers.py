"""What a node keeps of a prompt below its device, and what it takes to bring that back. Pure."""

from __future__ import annotations

from typing import NamedTuple

HOST_BYTES_PER_SECOND = 4e9
"""Rate of copies from host memory to a device, as long as the node has measured none."""
DISK_BYTES_PER_SECOND = 1e9
"""Rate of reading blocks from disk, as long as the node has measured none."""


class TierRates(NamedTuple):
    """How fast blocks come back to a node's device (protos/baton/v1/node.proto, TierRates)."""

    host_bytes_per_second: float = 0.0
    """Copies between host memory and device; 0: not measured."""
    disk_bytes_per_second: float = 0.0
    """Reading from disk into host memory; 0: not measured."""
    max_read_blocks: int = 0
    """Blocks of one run of which some are read from disk, at most; 0: nothing is read."""


class LowerPrefix(NamedTuple):
    """Prompt tokens after those on a node's device that it could bring back; see `baton.kv.tier.HeldPrefix`."""

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
    """Return what could be brought back: nothing, what is in host memory, or all.

    Args:
        lower: What there is, in whole blocks.
        rates: Of the node.
        block_tokens: Tokens of a block.
        token_bytes: Bytes of a token's KV.
    """
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
