"""Copies of blocks between a runner and what keeps them elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from baton.engine.kv_cache.disk_tier import BlockKv, DiskTier
from baton.engine.kv_cache.offload import BlockSwaps
from baton.engine.runners.base import LayerKv, Runner
from baton.kv.host_store import HostBlockStore
from baton.kv.pool import BlockPool

READ_BLOCKS = 64
"""Blocks read at once."""
SAVE_SECONDS = 5.0
"""Time that saving the prefix cache may take when the engine ends, beside what the disk takes afterwards."""


def swap_blocks(runner: Runner, swaps: BlockSwaps, store: HostBlockStore[BlockKv]) -> int:
    """Copy blocks to host memory and back, as a pass needs it; return how many."""
    for begin in range(0, len(swaps.outs), READ_BLOCKS):
        moved = swaps.outs[begin : begin + READ_BLOCKS]
        contents = read_blocks(runner, [each.block_id for each in moved])
        for each, content in zip(moved, contents, strict=True):
            store.put(each.block_hash, content)
    for swap in swaps.ins:
        write_blocks(runner, swap.block_table, swap.first_block, swap.contents)
    return len(swaps.outs) + sum(len(swap.contents) for swap in swaps.ins)


def save_cached(runner: Runner, pool: BlockPool, disk: DiskTier, clock: Callable[[], float]) -> None:
    """Let the prefix cache be written to disk, the last used first, as far as the time goes."""
    deadline = clock() + SAVE_SECONDS
    blocks = [each for each in reversed(pool.next_evicted(pool.num_blocks)) if each.block_hash not in disk.store]
    for begin in range(0, len(blocks), READ_BLOCKS):
        remaining_seconds = deadline - clock()
        if remaining_seconds <= 0 or not disk.store.wait_for_room(remaining_seconds):
            return
        saved = blocks[begin : begin + READ_BLOCKS]
        contents = read_blocks(runner, [each.block_id for each in saved])
        for each, content in zip(saved, contents, strict=True):
            disk.put(each.block_hash, content)


def read_blocks(runner: Runner, block_ids: Sequence[int]) -> list[BlockKv]:
    """Return the contents of blocks."""
    num_tokens = len(block_ids) * runner.block_tokens
    layers = []
    for layer, spec in enumerate(runner.info.layout.layers):
        kv = runner.read_kv(block_ids, layer, 0, num_tokens)
        halves = [split_blocks(half, spec.num_kv_heads, len(block_ids)) for half in kv]
        layers.append([LayerKv(*block) for block in zip(*halves, strict=True)])
    return list(zip(*layers, strict=True))


def write_blocks(runner: Runner, block_table: Sequence[int], first_block: int, contents: Sequence[BlockKv]) -> None:
    """Fill consecutive blocks of a table, from `first_block` on."""
    start, num_tokens = first_block * runner.block_tokens, len(contents) * runner.block_tokens
    for layer, spec in enumerate(runner.info.layout.layers):
        halves = zip(*(block[layer] for block in contents), strict=True)
        joined = LayerKv(*(join_blocks(half, spec.num_kv_heads) for half in halves))
        runner.write_kv(block_table, layer, start, num_tokens, joined)


def split_blocks(part: bytes | memoryview, num_heads: int, num_blocks: int) -> list[bytes]:
    """Return the blocks, 0 or more, of [heads, blocks * tokens, head dim], each [heads, tokens, head dim]."""
    array = np.frombuffer(part, dtype=np.uint8).reshape(max(1, num_heads), max(1, num_blocks), -1)
    return [array[:, block].tobytes() for block in range(num_blocks)]


def join_blocks(parts: Iterable[bytes | memoryview], num_heads: int) -> bytes:
    """Return blocks, 1 or more, as one [heads, blocks * tokens, head dim]."""
    return np.concatenate(
        [np.frombuffer(part, np.uint8).reshape(max(1, num_heads), -1) for part in parts], axis=1
    ).tobytes()
