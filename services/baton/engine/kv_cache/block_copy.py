"""Copies of blocks between a runner and what keeps them elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

from baton.engine.kv_cache.disk_tier import DiskTier
from baton.engine.kv_cache.offload import BlockSwaps, Offload, SwapOut
from baton.engine.runners.base import BlockCopies, BlockKv, LayerKv, Runner
from baton.kv.numpy_codec import join_blocks
from baton.kv.pool import BlockPool

log = logging.getLogger(__name__)

READ_BLOCKS = 64
"""Blocks read at once."""
SAVE_SECONDS = 5.0
"""Time that saving the prefix cache may take when the engine ends, beside what the disk takes afterwards."""


class ComingBlock(Sequence[LayerKv]):
    """K and V of a block on its way to host memory, layer by layer; who looks at them waits for them."""

    def __init__(self) -> None:
        self.kv = Future[BlockKv]()

    def __getitem__(self, layer: Any) -> Any:
        return self.kv.result()[layer]

    def __len__(self) -> int:
        return len(self.kv.result())


def swap_blocks(
    runner: Runner, swaps: BlockSwaps, offload: Offload, lane: Executor, clock: Callable[[], float]
) -> None:
    """Copy blocks to host memory and back, as a pass needs it.

    What goes out is there for whoever asks from now on; `lane`, one thread, waits for it, and who copies waits for the
    lane where too much is on its way. What cannot be copied out is lost, and nothing else.
    """
    for first in range(0, len(swaps.outs), READ_BLOCKS):
        outs = swaps.outs[first : first + READ_BLOCKS]
        for _ in outs:
            offload.room.acquire()
        began = clock()
        try:
            copies = runner.begin_copies([each.block_id for each in outs])
        except Exception as error:  # no pass depends on them
            log.warning("copies_lost blocks=%d cause=%r", len(swaps.outs) - first, error)
            offload.room.release(len(outs))
            break
        blocks = [ComingBlock() for _ in outs]
        for each, block in zip(outs, blocks, strict=True):
            offload.put(each.block_hash, block)
        lane.submit(_take_in, copies, outs, blocks, offload, clock() - began, clock)
    if swaps.ins:
        began = clock()
        for swap in swaps.ins:
            write_blocks(runner, swap.block_table, swap.first_block, swap.contents)
        offload.note_copied(sum(len(swap.contents) for swap in swaps.ins), clock() - began)


def _take_in(
    copies: BlockCopies,
    outs: Sequence[SwapOut],
    blocks: Sequence[ComingBlock],
    offload: Offload,
    seconds: float,
    clock: Callable[[], float],
) -> None:
    try:
        copies.wait()
        began = clock()
        for block, kv in zip(blocks, copies.blocks(), strict=True):
            block.kv.set_result(kv)
    except Exception as error:  # the edge of the lane: whoever wants one of the blocks is told
        log.warning("copies_lost blocks=%d cause=%r", len(outs), error)
        for block in blocks:
            if not block.kv.done():
                block.kv.set_exception(error)
        offload.note_lost(outs, blocks)
    else:
        offload.note_out(outs, blocks, seconds + clock() - began)
    finally:
        offload.room.release(len(outs))


def save_cached(runner: Runner, pool: BlockPool, disk: DiskTier, clock: Callable[[], float]) -> None:
    """Let the prefix cache be written to disk, the last used first, as far as the time goes."""
    deadline = clock() + SAVE_SECONDS
    blocks = [each for each in reversed(pool.next_evicted(pool.num_blocks)) if each.block_hash not in disk.store]
    for begin in range(0, len(blocks), READ_BLOCKS):
        remaining_seconds = deadline - clock()
        if remaining_seconds <= 0 or not disk.store.wait_for_room(remaining_seconds):
            return
        saved = blocks[begin : begin + READ_BLOCKS]
        contents = runner.begin_copies([each.block_id for each in saved]).blocks()
        for each, content in zip(saved, contents, strict=True):
            disk.put(each.block_hash, content)


def write_blocks(runner: Runner, block_table: Sequence[int], first_block: int, contents: Sequence[BlockKv]) -> None:
    """Fill consecutive blocks of a table, from `first_block` on."""
    start, num_tokens = first_block * runner.block_tokens, len(contents) * runner.block_tokens
    for layer, spec in enumerate(runner.info.layout.layers):
        halves = zip(*(block[layer] for block in contents), strict=True)
        joined = LayerKv(*(join_blocks(half, spec.num_kv_heads) for half in halves))
        runner.write_kv(block_table, layer, start, num_tokens, joined)
