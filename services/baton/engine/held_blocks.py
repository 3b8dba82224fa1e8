"""Blocks that a node can hand out by hash: those on the device and in host memory."""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.block_copy import join_blocks, split_blocks
from baton.engine.disk_tier import BlockKv
from baton.engine.runners.base import LayerKv, Runner
from baton.errors import NotFoundError
from baton.kv.hashing import BlockHash
from baton.kv.host_store import HostBlockStore
from baton.kv.pool import BlockId, BlockPool


class HeldBlocks:
    """What the prefix cache holds now, but for what is on disk: to read that takes longer than a gap between passes.

    Args:
        runner: Where K and V of the device are.
        pool: Says which block of the device holds what.
        store: Contents in host memory.
    """

    def __init__(self, runner: Runner, pool: BlockPool, store: HostBlockStore[BlockKv]) -> None:
        self._runner = runner
        self._pool = pool
        self._store = store

    def block_bytes(self, layer: int) -> int:
        """Return the bytes of a block in one layer."""
        layout = self._runner.info.layout
        return layout.layers[layer].num_token_elements * layout.dtype.num_bytes * self._pool.block_tokens

    def count(self, hashes: Sequence[BlockHash]) -> int:
        """Return how many blocks, from the first on, are held. O(blocks counted)."""
        count = len(self._pool.match(hashes))
        while count < len(hashes) and self._holds(hashes[count]):
            count += 1
        return count

    def read(self, hashes: Sequence[BlockHash], layer: int) -> LayerKv:
        """Return K and V of consecutive blocks in one layer, and count the blocks as used.

        Raises:
            NotFoundError: BLOCKS_EVICTED, if one of them is not held any more.
        """
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

    def _holds(self, block_hash: BlockHash) -> bool:
        return bool(self._pool.match([block_hash])) or block_hash in self._store
