"""What becomes of the blocks of preempted sequences: copied to host memory, or computed again.

Their blocks stay in the prefix cache until others need them. Only then, and only where two copies take less time than
the computation, what they hold is copied out; a sequence that comes back finds the head of its blocks on the device
and what follows in host memory. Whatever neither has any more is computed again, so nothing depends on the copies.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple, TypeAlias

from baton.engine.pace import PassCost
from baton.engine.runners.base import LayerKv
from baton.engine.sequence import Sequence
from baton.kv.hashing import BlockHash
from baton.kv.host_store import HostBlockStore
from baton.kv.pool import BlockId

BlockKv: TypeAlias = tuple[LayerKv, ...]
"""K and V of a block, layer by layer."""

_RATE_DECAY = 0.9
"""What a copying rate is taken for after a slower copy: one that had to wait for the device says little."""


class MovedOut(NamedTuple):
    """A block whose contents go to host memory before a pass overwrites them."""

    block_id: BlockId
    """Where they are."""
    block_hash: BlockHash
    """What they are."""


class Restored(NamedTuple):
    """Contents from host memory that go into a sequence's blocks before a pass reads them."""

    sequence: Sequence
    """Whose blocks."""
    first_block: int
    """Index of the first of them in its table."""
    contents: list[BlockKv]
    """One per block."""


class Offload:
    """Decides what is copied out, and remembers for whom.

    Invariant: `_wanted` counts, for each hash, the waiting sequences that have it in `kept_hashes`.

    Args:
        store: Where contents go.
        block_bytes: Bytes of a block's contents.
        block_tokens: Positions of a block.
    """

    def __init__(self, store: HostBlockStore[BlockKv], *, block_bytes: int, block_tokens: int) -> None:
        self.store = store
        self._block_bytes = block_bytes
        self._block_tokens = block_tokens
        self._bytes_per_second = 0.0
        self._wanted: Counter[BlockHash] = Counter()
        self._evicted: list[MovedOut] = []

    @property
    def is_wanted(self) -> bool:
        """Return whether any waiting sequence wants blocks back."""
        return bool(self._wanted)

    def keep(self, sequence: Sequence, cost: PassCost | None) -> None:
        """Remember the hashed blocks of a sequence that is about to lose them, if copies are worth their time."""
        num_blocks = min(sequence.num_stored_blocks, self.store.max_blocks)
        if num_blocks and is_moved(
            num_tokens=num_blocks * self._block_tokens,
            num_bytes=num_blocks * self._block_bytes,
            bytes_per_second=self._bytes_per_second,
            cost=cost,
        ):
            sequence.kept_hashes = sequence.hashes[:num_blocks]
            self._wanted.update(sequence.kept_hashes)

    def drop(self, sequence: Sequence) -> None:
        """Forget that a sequence wants its blocks: it has come back, or ended."""
        for block_hash in sequence.kept_hashes:
            self._wanted[block_hash] -= 1
            if not self._wanted[block_hash]:
                del self._wanted[block_hash]
        sequence.kept_hashes = []

    def note_evicted(self, block_id: BlockId, block_hash: BlockHash) -> None:
        """Plan to copy a block out that is about to be overwritten, if a sequence wants it."""
        if block_hash in self._wanted and block_hash not in self.store:
            self._evicted.append(MovedOut(block_id, block_hash))

    def drain(self) -> list[MovedOut]:
        """Return and forget what is to be copied out."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def note_copied(self, num_blocks: int, seconds: float) -> None:
        """Take in how long it took to copy blocks, in or out."""
        if seconds > 0.0:
            rate = num_blocks * self._block_bytes / seconds
            self._bytes_per_second = max(rate, _RATE_DECAY * self._bytes_per_second)


def is_moved(*, num_tokens: int, num_bytes: int, bytes_per_second: float, cost: PassCost | None) -> bool:
    """Return whether KV is rather copied out and in than computed again.

    Args:
        num_tokens: Positions, from a sequence's first on.
        num_bytes: Size of their KV.
        bytes_per_second: Rate of copies; 0: not known, and a copy tells.
        cost: Of passes; None: not known.
    """
    if cost is None or not bytes_per_second:
        return True
    return 2 * num_bytes / bytes_per_second < cost.prompt_seconds(0, num_tokens)
