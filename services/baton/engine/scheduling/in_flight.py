"""What a sequence finds computed when it is admitted.

It need not compute blocks in the prefix cache, nor those that running sequences compute. Requests that arrive together
often begin alike, or are equal. The first of them computes what they share; the others take its blocks in the same
pass, because a pass writes K and V of all its spans before any of them reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.engine.kv_cache.offload import Offload
from baton.engine.kv_cache.state_slots import StateSlots
from baton.engine.request import Purpose
from baton.engine.runners.base import BlockKv
from baton.engine.sequence import Sequence
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockId, BlockPool


@dataclass(frozen=True, slots=True)
class ReusablePrefix:
    """What a sequence finds computed when it is admitted."""

    blocks: list[BlockId]
    """Leading full blocks, to be referenced."""
    num_cached_blocks: int
    """How many of them are in the prefix cache; the others land in the pass that is being planned."""
    restored: list[BlockKv] = field(default_factory=list)
    """Contents of full blocks after them, from host memory."""
    leader: Sequence | None = None
    """Sequence of the very same tokens whose last position the pass computes, with all of its full blocks above."""

    @property
    def must_join(self) -> bool:
        """Return whether blocks are yet to be filled: only a sequence of the pass, which fails with it, has them."""
        return self.leader is None and len(self.blocks) > self.num_cached_blocks

    @property
    def is_here(self) -> bool:
        """Return whether it is whole on the device."""
        return not (self.must_join or self.leader or self.restored)


class InFlightPrefixes:
    """What the running sequences compute.

    Interval table of a sequence in the prefill phase: blocks before `num_stored_blocks` are in the prefix cache; those
    that the planned pass fills land in it; the rest, and the sequence as a whole unless the pass computes its last
    position, is pending.
    """

    def __init__(self, pool: BlockPool, states: StateSlots, offload: Offload) -> None:
        self._pool, self._states = pool, states
        self._offload = offload
        self._pending: dict[BlockHash, int] = {}  # the highest priority with which it is computed
        self._landing: dict[BlockHash, BlockId] = {}
        self._finishing: dict[BlockHash, Sequence] = {}

    def note(self, sequence: Sequence, *, end: int) -> None:
        """Take in a running sequence whose positions [0, end) are computed after the pass."""
        whole = sequence.whole_hash(self._pool.block_tokens)
        first, last = sequence.num_stored_blocks, max(sequence.num_stored_blocks, end // self._pool.block_tokens)
        for block_index in range(first, last):
            self._landing.setdefault(sequence.hashes[block_index], sequence.block_table[block_index])
        priority = sequence.request.priority
        for block_hash in sequence.hashes[last:]:
            self._pending[block_hash] = min(priority, self._pending.get(block_hash, priority))
        if end == len(sequence.token_ids):
            self._finishing.setdefault(whole, sequence)
        else:
            self._pending[whole] = min(priority, self._pending.get(whole, priority))

    def reusable_prefix(self, sequence: Sequence) -> ReusablePrefix | None:
        """Return what a waiting sequence finds, or None if more of its prefix is pending: it had better wait."""
        if sequence.restore is not None and sequence.restore.is_reading:
            return None
        if sequence.awaited is not None and self._is_pending(sequence.awaited, sequence):
            return None
        sequence.awaited = None
        hashes = self._reusable_hashes(sequence)
        blocks = self._pool.match(hashes)
        num_cached = len(blocks)
        if self._states or not _can_share(sequence):
            return self._up_to_checkpoint(sequence, hashes, blocks)
        for block_hash in hashes[num_cached:]:
            if block_hash not in self._landing:
                break
            blocks.append(self._landing[block_hash])
        sequence.awaited = self._last_pending(sequence, hashes[len(blocks) :])
        if _must_be_stored(sequence) and len(blocks) > num_cached:
            sequence.awaited = hashes[len(blocks) - 1]
        if sequence.awaited is not None:
            return None
        leader = self._finishing.get(sequence.whole_hash(self._pool.block_tokens))
        if leader is None or _must_be_stored(sequence):
            is_cached = len(blocks) == num_cached
            return self._with_restored(sequence, hashes, blocks) if is_cached else ReusablePrefix(blocks, num_cached)
        num_full_blocks = len(sequence.token_ids) // self._pool.block_tokens
        return ReusablePrefix(leader.block_table[:num_full_blocks], num_cached, leader=leader)

    def _up_to_checkpoint(
        self, sequence: Sequence, hashes: list[BlockHash], blocks: list[BlockId]
    ) -> ReusablePrefix | None:
        """Return what the caches have; of a model with states up to the deepest checkpoint that blocks reach."""
        sequence.num_matched_blocks, num_blocks = len(blocks), self._states.deepest(hashes, len(hashes))
        while True:
            prefix = self._with_restored(sequence, hashes[:num_blocks], blocks[:num_blocks])
            if not (prefix and self._states) or len(prefix.blocks) + len(prefix.restored) == num_blocks:
                return prefix
            num_blocks = self._states.deepest(hashes, num_blocks - 1)

    def _with_restored(
        self, sequence: Sequence, hashes: list[BlockHash], blocks: list[BlockId]
    ) -> ReusablePrefix | None:
        """Return cached blocks, and host memory's after them where worth it; None if more comes from disk."""
        if self._offload.is_reading(sequence, hashes, len(blocks)):
            return None
        return ReusablePrefix(blocks, len(blocks), self._offload.take_run(hashes, len(blocks)))

    def _reusable_hashes(self, sequence: Sequence) -> list[BlockHash]:
        """Return the hashes of the leading blocks that a sequence may take over instead of computing them."""
        if sequence.request.is_cache_bypassed:
            return []
        sequence.extend_hashes(self._pool.block_tokens)
        return sequence.hashes[: sequence.num_reusable // self._pool.block_tokens]

    def _last_pending(self, sequence: Sequence, hashes: list[BlockHash]) -> BlockHash | None:
        """Return the last of the consecutive hashes that are pending; the whole sequence counts as one more."""
        last = None
        for block_hash in hashes:
            if not self._is_pending(block_hash, sequence):
                return last
            last = block_hash
        whole = sequence.whole_hash(self._pool.block_tokens)
        return whole if self._is_pending(whole, sequence) and not _must_be_stored(sequence) else last

    def _is_pending(self, block_hash: BlockHash, sequence: Sequence) -> bool:
        """Return whether a sequence of the same priority or an earlier one computes a block in a later pass."""
        if block_hash in self._landing or block_hash in self._finishing:
            return False
        priority = self._pending.get(block_hash)
        return priority is not None and priority <= sequence.request.priority


def _can_share(sequence: Sequence) -> bool:
    """Return whether a sequence may take over what is not in the prefix cache yet.

    One that receives has told the other node what it lacks; one whose prompt is scored needs the logits of every
    position.
    """
    is_receiving = sequence.purpose is Purpose.RECEIVE
    return not (sequence.request.is_cache_bypassed or is_receiving or sequence.is_scoring)


def _must_be_stored(sequence: Sequence) -> bool:
    """Return whether K and V of the prefix must exist at admission, because they are handed out before the pass."""
    return sequence.request.export is not None
