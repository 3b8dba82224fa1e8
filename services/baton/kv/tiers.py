"""Tiers in which a node keeps blocks, on its device and below it, and what it tells of each."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from baton.kv.hashing import BlockHash


class Tier(Enum):
    """A place of blocks. Device and lower tiers may hold a block at the same time."""

    DEVICE = "device"
    """The pool: what a pass reads."""
    HOST = "host"
    DISK = "disk"


LOWER_TIERS = (Tier.HOST, Tier.DISK)
"""Tiers from which blocks are copied to the device before a pass reads them."""


class HeldPrefix(NamedTuple):
    """Leading blocks of a prompt that a node holds.

    Interval table: [0, num_blocks) on the device; [num_blocks, num_blocks + num_lower_blocks) in host memory or on
    disk, of which `num_disk_blocks` on disk only, and the first `num_host_blocks` all in host memory.
    """

    num_blocks: int
    num_host_blocks: int = 0
    """After those, in host memory, up to the first that is not."""
    num_lower_blocks: int = 0
    """After those on the device, in host memory or on disk, up to the first that is in neither."""
    num_disk_blocks: int = 0
    """Of the ones in lower tiers, on disk only."""


class BlockEvents(NamedTuple):
    """Changes of a tier since the last look, in net: nothing is in both lists."""

    stored: list[BlockHash]
    """Hashes that can be hit and could not be before."""
    removed: list[BlockHash]
    """Hashes that can no longer be hit."""
    tier: Tier = Tier.DEVICE
