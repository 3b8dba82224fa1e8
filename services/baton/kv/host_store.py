"""Contents of KV blocks in host memory: what a device had no room for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

from baton.kv.hashing import BlockHash, Tier
from baton.kv.pool import BlockChanges

Contents = TypeVar("Contents")
"""K and V of a block, in whatever form its owner copies it."""


class HostBlockStore(Generic[Contents]):
    """Keeps contents by the hash of their block, the least recently used go first.

    A hash names the tokens of a block and all before it, so contents serve any sequence with these tokens. Contents may
    be gone at any time. Invariant: there are never more than `max_blocks`. `block_bytes` is the memory that the
    contents of a block take; 0: nothing is kept. `num_blocks`: blocks that are here. `changes`: what has come, and what
    has gone.
    """

    def __init__(self, max_bytes: int, block_bytes: int) -> None:
        self.max_blocks = max_bytes // block_bytes if block_bytes else 0
        self.num_blocks = 0
        self._contents: OrderedDict[BlockHash, Contents] = OrderedDict()
        self.changes = BlockChanges(Tier.HOST)

    @property
    def hashes(self) -> list[BlockHash]:
        """Return the hash of every block that is here."""
        return list(self._contents)

    def __contains__(self, block_hash: BlockHash) -> bool:
        """Return whether a block's contents are here."""
        return block_hash in self._contents

    def put(self, block_hash: BlockHash, contents: Contents) -> None:
        """Keep contents, and forget others if there is no room."""
        if not self.max_blocks:
            return
        if block_hash not in self._contents:
            if self.num_blocks >= self.max_blocks:
                self.forget([next(iter(self._contents))])
            self.changes.store(block_hash)
            self.num_blocks += 1
        self._contents[block_hash] = contents
        self._contents.move_to_end(block_hash)

    def take_run(self, hashes: Iterable[BlockHash]) -> list[Contents]:
        """Return the contents of the leading blocks that are here, and count them as used. O(blocks returned)."""
        run = []
        for block_hash in hashes:
            contents = self._contents.get(block_hash)
            if contents is None:
                break
            self._contents.move_to_end(block_hash)
            run.append(contents)
        return run

    def forget(self, hashes: Iterable[BlockHash]) -> None:
        """Drop contents, where they are here."""
        for block_hash in hashes:
            if self._contents.pop(block_hash, None) is not None:
                self.changes.remove(block_hash)
                self.num_blocks -= 1
