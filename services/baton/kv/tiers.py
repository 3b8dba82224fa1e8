"""Tiers in which a node keeps blocks, on its device and below it, and what changes in each."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from itertools import islice
from typing import NamedTuple

from baton.kv.hashing import BlockHash


class Tier(Enum):
    """A place of blocks. Device and lower tiers may hold a block at the same time."""

    DEVICE = "device"
    """The pool: what a pass reads."""
    HOST = "host"
    """Host memory."""
    DISK = "disk"
    """A local disk."""


LOWER_TIERS = (Tier.HOST, Tier.DISK)
"""Tiers from which blocks are copied to the device before a pass reads them."""


class HeldPrefix(NamedTuple):
    """Leading blocks of a prompt that a node holds.

    Interval table: [0, num_blocks) on the device; [num_blocks, num_blocks + num_lower_blocks) in host memory or on
    disk, of which `num_disk_blocks` on disk only, and the first `num_host_blocks` all in host memory.
    """

    num_blocks: int
    """On the device."""
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
    """The tier."""


class BlockChanges:
    """Gathers the changes of a tier; what comes and goes between two looks leaves no trace.

    Invariant, kept by callers: only what is not there is stored, and only what is there is removed.
    """

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._stored: dict[BlockHash, None] = {}
        self._removed: dict[BlockHash, None] = {}

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._stored or self._removed)

    def store(self, block_hash: BlockHash) -> None:
        """Note that a block has come."""
        if self._removed.pop(block_hash, block_hash) is not None:
            self._stored[block_hash] = None

    def remove(self, block_hash: BlockHash) -> None:
        """Note that a block has gone."""
        if self._stored.pop(block_hash, block_hash) is not None:
            self._removed[block_hash] = None

    def drain(self, max_hashes: int | None = None) -> BlockEvents:
        """Return and forget the changes, removals first, at most so many; None: all. O(changes returned)."""
        removed = _take(self._removed, max_hashes)
        left = None if max_hashes is None else max_hashes - len(removed)
        return BlockEvents(_take(self._stored, left), removed, self._tier)

    def restart(self, hashes: Iterable[BlockHash] = ()) -> None:
        """Forget the changes; what is there now counts as having come, if it is named."""
        self._stored = dict.fromkeys(hashes)
        self._removed.clear()


def _take(hashes: dict[BlockHash, None], max_hashes: int | None) -> list[BlockHash]:
    """Return and drop the oldest of some hashes."""
    taken = list(islice(hashes, max_hashes))
    if len(taken) == len(hashes):
        hashes.clear()
    else:
        for block_hash in taken:
            del hashes[block_hash]
    return taken
