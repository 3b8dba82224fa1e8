"""Cached blocks that other nodes ask for by hash, on the device and in host memory.

They are read between passes, in pieces that fit into the gap, so that no running request waits for a read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from baton.engine.kv_cache.ingest import GapBudget
from baton.engine.runners.base import BlockKv, LayerKv, Runner
from baton.errors import NotFoundError
from baton.kv.hashing import BlockHash
from baton.kv.numpy_codec import join_blocks, split_blocks
from baton.kv.pool import BlockId, BlockPool, HostBlockStore


class HeldBlocks:
    """What the prefix cache holds now, but for what is on disk: to read that takes longer than a gap between passes."""

    def __init__(self, runner: Runner, pool: BlockPool, store: HostBlockStore[BlockKv]) -> None:
        self._runner, self._pool = runner, pool
        self._store = store

    def block_bytes(self, layer: int) -> int:
        """Return the bytes of a block in one layer."""
        layout = self._runner.info.layout
        return layout.layers[layer].num_token_elements * layout.dtype.num_bytes * self._pool.block_tokens

    def count(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many blocks, from the first on, are held. O(blocks counted)."""
        count = len(self._pool.match(hashes))
        while count < len(hashes) and (self._pool.match([hashes[count]]) or hashes[count] in self._store):
            count += 1
        return count

    def read(self, hashes: Sequence[BlockHash], layer: int) -> LayerKv:
        """Return K and V of blocks in one layer, and count them as used; raise NotFoundError if one is held no more."""
        on_device = [self._pool.match([block_hash]) for block_hash in hashes]  # one or none each
        on_host = [
            [] if blocks else self._store.take_run([each]) for each, blocks in zip(hashes, on_device, strict=True)
        ]
        num_gone = sum(not (blocks or contents) for blocks, contents in zip(on_device, on_host, strict=True))
        if num_gone:
            raise NotFoundError(f"{num_gone} blocks have left the prefix cache", reason="BLOCKS_EVICTED")
        block_ids = [block_id for blocks in on_device for block_id in blocks]
        if len(block_ids) == len(hashes):
            return self._read_device(block_ids, layer)
        num_heads = self._runner.info.layout.layers[layer].num_kv_heads
        device_halves = (split_blocks(half, num_heads, len(block_ids)) for half in self._read_device(block_ids, layer))
        halves = zip(*device_halves, strict=True)
        parts = [contents[0][layer] if contents else LayerKv(*next(halves)) for contents in on_host]
        return LayerKv(*(join_blocks(half, num_heads) for half in zip(*parts, strict=True)))

    def _read_device(self, block_ids: Sequence[BlockId], layer: int) -> LayerKv:
        if not block_ids:
            return LayerKv(b"", b"")
        self._pool.acquire(block_ids)
        try:
            return self._runner.read_kv(block_ids, layer, 0, len(block_ids) * self._pool.block_tokens)
        finally:
            self._pool.release(block_ids)  # the blocks count as used now


class BlockRead:
    """K and V of consecutive blocks in some layers, read so far. A cancelled `answer`: nobody wants more."""

    def __init__(self, hashes: Sequence[BlockHash], layers: range, answer: Future[list[LayerKv]]) -> None:
        self.hashes, self.answer = hashes, answer
        self.layers = layers
        self._kvs: list[LayerKv] = []

    @property
    def layer(self) -> int:
        """Return the next layer to read."""
        return self.layers[len(self._kvs)]

    def add(self, kv: LayerKv) -> bool:
        """Take the next layer; return whether it was the last."""
        self._kvs.append(kv)
        if len(self._kvs) < len(self.layers):
            return False
        self.answer.set_result(self._kvs)
        return True


class BlockReads:
    """What has been asked and is not read yet.

    Invariants: no block is referenced between two pieces, so that none is kept from running requests; one that has left
    the prefix cache meanwhile fails its read. Every gap between passes reads a piece, a layer of one read.

    Attributes:
        queue: Reads that are not complete, in order.
    """

    def __init__(self, held: HeldBlocks, budget: GapBudget, clock: Callable[[], float]) -> None:
        self._held, self._budget = held, budget
        self._clock = clock
        self.queue: deque[BlockRead] = deque()

    def add(self, read: BlockRead) -> None:
        """Queue a read."""
        self.queue.append(read)
        self._budget.note_arrival(len(read.hashes) * sum(map(self._held.block_bytes, read.layers)))

    def run(self, pass_seconds: float, num_running: int) -> None:
        """Read what fits between two passes, a piece at least; everything if no sequence (`num_running`) waits."""
        if not self.queue:
            return
        self._budget.begin(pass_seconds, num_running=num_running, num_waiting=len(self.queue))
        is_first = True
        while self.queue and (is_first or self._budget.affordable_bytes() >= self._next_bytes()):
            read = self.queue[0]
            if not read.answer.running() and not read.answer.set_running_or_notify_cancel():
                self.queue.popleft()
                continue
            is_first = False
            if self._read(read):
                self.queue.popleft()

    def _next_bytes(self) -> int:
        read = self.queue[0]
        return len(read.hashes) * self._held.block_bytes(read.layer)

    def _read(self, read: BlockRead) -> bool:
        """Read a layer; return whether nothing is left to do for the read."""
        started = self._clock()
        try:
            kv = self._held.read(read.hashes, read.layer)
        except Exception as error:  # the edge of the read: the engine must not die of it
            read.answer.set_exception(error)
            return True
        self._budget.note_write(len(kv.keys) + len(kv.values), self._clock() - started)
        return read.add(kv)
