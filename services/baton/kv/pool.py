"""KV blocks of a device: which are free, referenced, or kept as prefix cache; those of host memory; what changes."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Generic, NamedTuple, NewType, TypeVar

from baton.errors import OutOfMemoryError
from baton.kv.hashing import BlockEvents, BlockHash, Tier

BlockId = NewType("BlockId", int)
"""Index of a block in the runner's memory."""
Contents = TypeVar("Contents")
"""K and V of a block, in whatever form its owner copies it."""


class CachedBlock(NamedTuple):
    """A block of the prefix cache."""

    block_id: BlockId
    block_hash: BlockHash


class BlockPool:
    """Reference counts and prefix cache over a fixed number of blocks.

    Every block is in exactly one of three states; the pool keeps these invariants, `check_integrity` proves them:
    - free: no reference, no hash, in `_free`;
    - cached: no reference, a hash, in `_evictable` in order of last use;
    - referenced: one or more references, with or without a hash, in neither.
    A hash names at most one block.

    Attributes:
        on_evict: Called by `allocate` with each cached block that it takes and the hash that it had.
        changes: What has become hittable, and what no longer is.
    """

    on_evict: Callable[[BlockId, BlockHash], None]

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.on_evict = lambda _block_id, _block_hash: None
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self._references = [0] * num_blocks
        self._hash_of: dict[BlockId, BlockHash] = {}
        self._block_of: dict[BlockHash, BlockId] = {}
        # A heap, so that the lowest ids go first: tables become runs of consecutive blocks, which runners read
        # uncopied.
        self._free = [BlockId(block_id) for block_id in range(num_blocks)]
        self._evictable: OrderedDict[BlockId, None] = OrderedDict()
        self.changes = BlockChanges(Tier.DEVICE)

    @property
    def num_available(self) -> int:
        """Return the blocks that can be allocated now, cached ones included."""
        return len(self._free) + len(self._evictable)

    @property
    def hashes(self) -> list[BlockHash]:
        """Return the hash of every block that can be hit."""
        return list(self._block_of)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the blocks that hold `num_tokens` positions."""
        return -(-num_tokens // self.block_tokens)

    def next_evicted(self, num_blocks: int) -> list[CachedBlock]:
        """Return the cached blocks that `allocate` would take next once no block is free, at most so many."""
        return [CachedBlock(block_id, self._hash_of[block_id]) for block_id in islice(self._evictable, num_blocks)]

    def match(self, hashes: Iterable[BlockHash]) -> list[BlockId]:
        """Return the blocks of the longest cached prefix. O(blocks matched)."""
        matched = []
        for block_hash in hashes:
            block_id = self._block_of.get(block_hash)
            if block_id is None:
                break
            matched.append(block_id)
        return matched

    def acquire(self, block_ids: Iterable[BlockId]) -> None:
        """Add a reference to each of some matched blocks."""
        for block_id in block_ids:
            self._references[block_id] += 1
            self._evictable.pop(block_id, None)

    def num_available_beside(self, block_ids: Iterable[BlockId]) -> int:
        """Return the blocks that could still be allocated after `acquire(block_ids)`."""
        return self.num_available - sum(1 for block_id in block_ids if block_id in self._evictable)

    def allocate(self, num_blocks: int) -> list[BlockId]:
        """Take blocks, free ones, then least recently used ones; raise OutOfMemoryError, taking none, if they lack."""
        if num_blocks > self.num_available:
            raise OutOfMemoryError(f"{num_blocks} KV blocks wanted, {self.num_available} available")
        taken = [heapq.heappop(self._free) for _ in range(min(num_blocks, len(self._free)))]
        while len(taken) < num_blocks:
            block_id, _ = self._evictable.popitem(last=False)
            self.on_evict(block_id, self._hash_of[block_id])
            self._forget(block_id)
            taken.append(block_id)
        for block_id in taken:
            self._references[block_id] = 1
        return taken

    def store(self, block_id: BlockId, block_hash: BlockHash) -> None:
        """Make a referenced, completely computed block hittable. Of two blocks with one hash the first stays."""
        if block_hash in self._block_of or block_id in self._hash_of:
            return
        self._hash_of[block_id] = block_hash
        self._block_of[block_hash] = block_id
        self.changes.store(block_hash)

    def release(self, block_ids: Sequence[BlockId]) -> None:
        """Drop a reference from each block of a table; a table's tail is evicted before its head."""
        for block_id in reversed(block_ids):
            self._references[block_id] -= 1
            if self._references[block_id]:
                continue
            if block_id in self._hash_of:
                self._evictable[block_id] = None
            else:
                heapq.heappush(self._free, block_id)

    def forget(self, block_ids: Iterable[BlockId]) -> None:
        """Make blocks unhittable: referenced ones stay with their tables, unreferenced ones become free."""
        for block_id in block_ids:
            if block_id in self._hash_of:
                self._forget(block_id)
                if block_id in self._evictable:
                    del self._evictable[block_id]
                    heapq.heappush(self._free, block_id)

    def check_integrity(self, tables: Iterable[Sequence[BlockId]]) -> None:
        """Prove the invariants against all living sequences' block tables; raise AssertionError naming a lost block."""
        expected = Counter(block_id for table in tables for block_id in table)
        free, evictable = set(self._free), set(self._evictable)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & evictable, f"blocks {free & evictable} are free and cached"
        assert len(self._hash_of) == len(self._block_of), "a hash names two blocks"
        for block_id in map(BlockId, range(self.num_blocks)):
            count = self._references[block_id]
            assert count == expected[block_id], f"block {block_id}: {count} references, {expected[block_id]} owners"
            assert (count == 0) == (block_id in free or block_id in evictable), f"block {block_id} is lost or doubled"
            assert (block_id in evictable) == (count == 0 and block_id in self._hash_of), f"block {block_id} mislaid"

    def _forget(self, block_id: BlockId) -> None:
        block_hash = self._hash_of.pop(block_id)
        del self._block_of[block_hash]
        self.changes.remove(block_hash)


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
