"""What becomes of blocks that leave the device: copied to host memory and disk, or computed again when needed.

Blocks that nobody holds stay in the prefix cache until others need their place. Only then, and only where two copies
take less time than the computation, what they hold is copied out. A sequence finds the head of its blocks on the device
and what follows in host memory, if copying that takes less than computing it; what is on disk only is read first, while
other sequences are computed. Blocks that no tier has any more are computed again, so nothing depends on the copies.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Container, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from threading import Semaphore
from typing import NamedTuple

from baton.capacity.snapshot import TierRates
from baton.engine.kv_cache.disk_tier import DiskTier
from baton.engine.runners.base import BlockKv
from baton.engine.sequence import RestoreState, Sequence
from baton.engine.step_cost import StepCost, StepCostModel
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockId, BlockPool, HostBlockStore

AHEAD_BLOCKS = 64
"""Blocks copied out at once where one must be: a copy waits for the device, and blocks evicted next can go along."""
MAX_COMING_BLOCKS = 256
"""Blocks that are on their way out at most: they take memory besides."""
_RATE_DECAY = 0.9
"""Part of the copying rate that is kept after a slower copy: a copy that had to wait for the device says little."""
_RATE_GROWTH = 1.001
"""What the copying rate is multiplied by whenever it was too low for a copy: after enough of these, a copy is tried and
the rate is measured again."""


class SwapOut(NamedTuple):
    """A block whose contents go to host memory before a pass overwrites them."""

    block_id: BlockId
    block_hash: BlockHash


class SwapIn(NamedTuple):
    """Contents from host memory that go into blocks before a pass reads them."""

    sequence: Sequence
    block_table: Seq[BlockId]
    first_block: int
    contents: list[BlockKv]
    """One per block."""


@dataclass(slots=True)
class BlockSwaps:
    """Blocks copied between device and host memory before a pass."""

    outs: list[SwapOut] = field(default_factory=list)
    """Blocks to copy out before the pass overwrites them."""
    ins: list[SwapIn] = field(default_factory=list)
    """Blocks to fill before the pass reads them, after `outs` are copied."""


class TierHits(NamedTuple):
    """Positions that sequences found when they were first admitted, by where."""

    device: int = 0
    host: int = 0
    disk: int = 0


class Offload:
    """Decides what is copied out and in, and remembers for whom.

    Attributes:
        hits: What has been found so far.
        max_copy_seconds: What copies may add to a pass while sequences generate, but for blocks that a preempted
            sequence wants back: as long as the shorter of the last two passes took, so that no token comes more than
            twice as late, and a sequence that waits for its blocks has half of the rate of copies at least.

    Invariant: `_wanted` counts, for each hash, the waiting sequences that have it in `kept_hashes`.
    """

    def __init__(
        self,
        store: HostBlockStore[BlockKv],
        costs: StepCostModel,
        *,
        block_bytes: int,
        block_tokens: int,
        disk: DiskTier | None = None,
    ) -> None:
        self.store, self._costs = store, costs
        self.hits = TierHits()
        self.max_copy_seconds = math.inf
        self._last_pass_seconds = math.inf
        self._disk, self._block_bytes = disk, block_bytes
        self._block_tokens = block_tokens
        self._bytes_per_second = 0.0
        self._wanted: Counter[BlockHash] = Counter()
        self._unwritten: dict[BlockHash, BlockKv] = {}  # on their way, and then to disk
        self.room = Semaphore(MAX_COMING_BLOCKS)
        self._come, self._lost = deque[tuple[SwapOut, BlockKv]](), deque[tuple[SwapOut, BlockKv]]()
        self._evicted: list[SwapOut] = []
        self._spare: list[SwapOut] = []

    @property
    def num_dropped_files(self) -> int:
        """Return the blocks on disk that turned out to be broken."""
        return self._disk.store.num_dropped_files if self._disk is not None else 0

    @property
    def rates(self) -> TierRates:
        """Return how fast blocks come back, as measured so far."""
        disk_rate = self._disk.store.bytes_per_second if self._disk is not None else 0.0
        return TierRates(self._bytes_per_second, disk_rate, self._max_read_blocks)

    def keep(self, sequence: Sequence) -> None:
        """Remember the hashed blocks of a sequence that is about to lose them, if copies are worth their time."""
        num_blocks = min(sequence.num_stored_blocks, self.store.max_blocks)
        if num_blocks and self._is_quicker(0, num_blocks, num_copies=2):
            restore = sequence.begin_restore()
            restore.kept_hashes = sequence.hashes[:num_blocks]
            self._wanted.update(restore.kept_hashes)

    def drop(self, sequence: Sequence) -> None:
        """Forget that a sequence wants its blocks: it has come back, or ended."""
        restore = sequence.restore
        if restore is None:
            return
        for block_hash in restore.kept_hashes:
            self._wanted[block_hash] -= 1
            if not self._wanted[block_hash]:
                del self._wanted[block_hash]
        restore.kept_hashes = []

    def note_evicted(self, block_id: BlockId, block_hash: BlockHash) -> None:
        """Plan to copy a block out that is about to be overwritten."""
        if self.store.max_blocks and block_hash not in self.store:
            is_wanted = block_hash in self._wanted
            (self._evicted if is_wanted else self._spare).append(SwapOut(block_id, block_hash))

    def forget_evicted(self) -> None:
        """Give up what was to be copied out: it is overwritten; and forget what did not come."""
        while self._lost:
            out, content = self._lost.popleft()
            if self.store.take_run([out.block_hash]) == [content]:
                self.store.forget([out.block_hash])
            if self._unwritten.get(out.block_hash) is content:
                del self._unwritten[out.block_hash]
        self._evicted, self._spare = [], []

    def drain(self, pool: BlockPool | None = None) -> list[SwapOut]:
        """Return and forget what is to be copied out.

        All that preempted sequences want; of the rest as much as may be, and what comes last: blocks are evicted from
        the tails of prompts on, and a tail is of no use without its head. Cached blocks of `pool` may go along, so that
        the next pass need not wait for copies.
        """
        if not (self._evicted or self._spare):
            return []
        evicted, spare = self._evicted, self._spare
        self.forget_evicted()
        if spare and not self._is_quicker(0, 1, num_copies=2):
            self._bytes_per_second *= _RATE_GROWTH
        elif spare:
            max_blocks = min(self.max_pass_blocks(), self.store.max_blocks)
            spare = spare[-max_blocks:]
            evicted += spare + self._ahead(pool, min(max_blocks, AHEAD_BLOCKS) - len(spare))
        return evicted

    def is_reading(self, sequence: Sequence, hashes: Seq[BlockHash], begin: int) -> bool:
        """Return whether a sequence had better wait for blocks that are on disk only; they are read meanwhile, once.

        `begin` is the index of the first of `hashes` that the device lacks.
        """
        if self._disk is None:
            return False
        restore = sequence.restore
        if restore is not None and restore.has_read:
            return restore.is_reading
        end = self._end_of_run(hashes, begin, begin + self._max_read_blocks)
        missing = [block_hash for block_hash in hashes[begin:end] if block_hash not in self.store]
        if not missing or not self._is_read_quicker(missing, hashes.index(missing[0]), end):
            return False
        restore = sequence.begin_restore()
        restore.is_reading = restore.has_read = True
        self._disk.read(missing, lambda contents: self._take_in(restore, hashes[begin:end], missing, contents))
        return True

    def put(self, block_hash: BlockHash, content: BlockKv) -> None:
        """Keep a block that is on its way out."""
        self.store.put(block_hash, content)
        if self._disk is not None:
            self._unwritten[block_hash] = content

    def note_out(self, outs: Seq[SwapOut], contents: Seq[BlockKv], seconds: float) -> None:
        """Take in how long it took to copy blocks out, which are here now, and let them be written to disk.

        From any thread.
        """
        self.note_copied(len(outs), seconds)
        if self._disk is not None:
            self._come.extend(zip(outs, contents, strict=True))
            self._disk.call(self.write_through)

    def note_lost(self, outs: Seq[SwapOut], contents: Seq[BlockKv]) -> None:
        """Take in that blocks have not come. From any thread."""
        self._lost.extend(zip(outs, contents, strict=True))

    def write_through(self) -> None:
        """Let what has come be written to disk, but for what has been forgotten meanwhile: it may be wrong."""
        while self._disk is not None and self._come:
            out, content = self._come.popleft()
            if self._unwritten.get(out.block_hash) is content:
                del self._unwritten[out.block_hash]
                self._disk.put(out.block_hash, content)

    def forget(self, hashes: Seq[BlockHash]) -> None:
        """Drop contents that may be wrong, wherever they are."""
        self.store.forget(hashes)
        for block_hash in hashes:
            self._unwritten.pop(block_hash, None)
        if self._disk is not None:
            self._disk.store.forget(hashes)

    def note_admitted(self, sequence: Sequence, num_cached_blocks: int, num_restored_blocks: int) -> None:
        """Count what a sequence found when it was first admitted: on the device, and what is copied there for it."""
        restore = sequence.restore
        num_filled = min(restore.num_filled_blocks, num_cached_blocks) if restore is not None else 0
        num_copied = num_filled + num_restored_blocks
        num_read = min(restore.num_read_blocks, num_copied) if restore is not None else 0
        found = (num_cached_blocks - num_filled, num_copied - num_read, num_read)
        self.hits = TierHits(*(total + more * self._block_tokens for total, more in zip(self.hits, found, strict=True)))

    def take_run(self, hashes: Seq[BlockHash], begin: int) -> list[BlockKv]:
        """Return consecutive blocks' contents, from `begin` of `hashes`, that are better copied in than computed."""
        if not self.store.num_blocks:
            return []
        contents = self.store.take_run(hashes[begin:])
        return contents if contents and self._is_quicker(begin, begin + len(contents)) else []

    def note_pass(self, seconds: float) -> None:
        """Take in what a pass took, above 0."""
        self.max_copy_seconds = min(seconds, self._last_pass_seconds)
        self._last_pass_seconds = seconds

    def note_copied(self, num_blocks: int, seconds: float) -> None:
        """Take in how long it took to copy blocks, in or out."""
        if seconds > 0.0:
            self._bytes_per_second = max(num_blocks * self._block_bytes / seconds, _RATE_DECAY * self._bytes_per_second)

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """Prove the invariant against all waiting sequences; raise AssertionError if blocks are wanted for nobody."""
        kept = (sequence.restore.kept_hashes for sequence in waiting if sequence.restore is not None)
        expected = Counter(block_hash for hashes in kept for block_hash in hashes)
        assert self._wanted == expected, f"{len(self._wanted)} blocks are wanted, {len(expected)} should be"

    def _end_of_run(self, hashes: Seq[BlockHash], begin: int, limit: int) -> int:
        """Return the index after the last of consecutive blocks from `begin` on that are in host memory or on disk."""
        end = begin
        while end < min(len(hashes), limit) and (hashes[end] in self.store or hashes[end] in self._on_disk):
            end += 1
        return end

    @property
    def _max_read_blocks(self) -> int:
        """Return the blocks of a run that is read from disk at most: it has to stay in host memory until it is used."""
        return self.store.max_blocks // 2

    @property
    def _on_disk(self) -> Container[BlockHash]:
        return self._disk.store if self._disk is not None else ()

    def _is_read_quicker(self, missing: Seq[BlockHash], begin: int, end: int) -> bool:
        """Return whether reading the missing ones of blocks [begin, end) and copying all in beats computing them."""
        cost = self._costs.cost
        read_rate = self._disk.store.bytes_per_second if self._disk is not None else 0.0
        if cost is None or not read_rate:
            return True
        read_seconds = len(missing) * self._block_bytes / read_rate
        copy_seconds = (end - begin) * self._block_bytes / (self._bytes_per_second or math.inf)
        return read_seconds + copy_seconds < cost.prompt_seconds(begin * self._block_tokens, end * self._block_tokens)

    def _take_in(
        self, restore: RestoreState, run: Seq[BlockHash], missing: Seq[BlockHash], contents: Seq[BlockKv]
    ) -> None:
        """Keep in host memory what has been read, but for blocks forgotten meanwhile, and let the sequence go on."""
        restore.is_reading = False
        self.store.take_run(run)  # the run's blocks in host memory count as used, lest they make room
        for block_hash, content in zip(missing, contents, strict=False):
            if block_hash in self._on_disk:
                self.store.put(block_hash, content)
                restore.num_read_blocks += 1

    def _ahead(self, pool: BlockPool | None, num_blocks: int) -> list[SwapOut]:
        """Return blocks that are to be taken next and are not in host memory, of so many."""
        candidates = pool.next_evicted(max(0, num_blocks)) if pool else []
        return [SwapOut(*each) for each in candidates if each.block_hash not in self.store]

    def max_pass_blocks(self) -> int:
        """Return the blocks that a pass may copy, 1 or more; if the rate is not known, as many as go at once."""
        if not self._bytes_per_second or math.isinf(self.max_copy_seconds):
            return AHEAD_BLOCKS
        return max(1, int(self.max_copy_seconds * self._bytes_per_second / self._block_bytes))

    def _is_quicker(self, begin: int, end: int, *, num_copies: int = 1) -> bool:
        """Return whether blocks [begin, end) of a sequence are rather copied than computed."""
        return is_copied(
            begin * self._block_tokens,
            end * self._block_tokens,
            num_bytes=num_copies * (end - begin) * self._block_bytes,
            bytes_per_second=self._bytes_per_second,
            cost=self._costs.cost,
        )


def is_copied(begin: int, end: int, *, num_bytes: int, bytes_per_second: float, cost: StepCost | None) -> bool:
    """Return whether KV of [begin, end) is rather copied, also if no rate, 0, is known, than computed again."""
    if cost is None or not bytes_per_second:
        return True
    return num_bytes / bytes_per_second < cost.prompt_seconds(begin, end)
