"""Blocks on their way to host memory and back."""

from __future__ import annotations

from typing import cast

import pytest

from baton.engine.kv_cache.block_copy import (
    READ_BLOCKS,
    SAVE_SECONDS,
    read_blocks,
    save_cached,
    swap_blocks,
    write_blocks,
)
from baton.engine.kv_cache.disk_tier import DiskTier
from baton.engine.kv_cache.offload import BlockKv, BlockSwaps, SwapIn, SwapOut
from baton.engine.runners.base import Span
from baton.engine.sequence import Sequence
from baton.kv.hashing import BlockHash
from baton.kv.host_store import HostBlockStore
from baton.kv.pool import BlockId, BlockPool
from engine.rig import LAYOUT, expected_tokens, mock_runner, prompt_of

BLOCK_BYTES = 4 * LAYOUT.num_token_bytes()


def test_a_sequence_goes_on_from_blocks_that_were_out_and_are_elsewhere() -> None:
    """Every byte of every layer comes back: the mock's next token depends on each."""
    runner, prompt = mock_runner(), prompt_of(19)
    runner.forward([Span(prompt[:16], 0, [9, 3, 4, 30], needs_logits=False)])

    contents = read_blocks(runner, [3, 4, 30])
    runner.forward([Span(prompt_of(16, seed=5), 0, [30, 3, 4, 20], needs_logits=False)])
    write_blocks(runner, [9, 50, 51, 2], 1, contents)

    logits = runner.forward([Span(prompt[16:], 16, [9, 50, 51, 2, 7], needs_logits=True)])
    assert logits.argmax() == expected_tokens(prompt, 1)
    assert all(sum(len(half) for layer in block for half in layer) == BLOCK_BYTES for block in contents)


def test_more_blocks_than_are_read_at_once_go_out() -> None:
    """Each under its own hash."""
    num_blocks = 2 * READ_BLOCKS + 3
    runner = mock_runner(num_blocks=num_blocks)
    runner.forward([Span(prompt_of(4 * num_blocks), 0, range(num_blocks), needs_logits=False)])
    hashes = [BlockHash(index.to_bytes(16, "little")) for index in range(num_blocks)]
    store = HostBlockStore[BlockKv](num_blocks * BLOCK_BYTES, BLOCK_BYTES)
    swaps = BlockSwaps(outs=[SwapOut(BlockId(index), hashes[index]) for index in range(num_blocks)])

    assert swap_blocks(runner, swaps, store) == num_blocks
    assert store.take_run(hashes) == [read_blocks(runner, [index])[0] for index in range(num_blocks)]


class FakeDisk:
    """A disk tier that has room."""

    def __init__(self) -> None:
        self.store = self
        self.saved: list[object] = []
        self.waits: list[float] = []

    def __contains__(self, block_hash: object) -> bool:
        return block_hash in self.saved

    def wait_for_room(self, max_seconds: float) -> bool:
        """Have room."""
        self.waits.append(max_seconds)
        return True

    def put(self, block_hash: object, _contents: object) -> None:
        """Take a block."""
        self.saved.append(block_hash)


@pytest.mark.parametrize(("left_seconds", "num_saved"), [(0.5, 1), (0.0, 0)])
def test_the_cache_is_saved_to_the_last_moment(left_seconds: float, num_saved: int) -> None:
    """And not beyond it: whoever stops a node waits for it."""
    runner, pool, disk = mock_runner(num_blocks=4), BlockPool(4, 4), FakeDisk()
    [block] = pool.allocate(1)
    pool.store(block, BlockHash(bytes(16)))
    pool.release([block])
    moments = iter([0.0, SAVE_SECONDS - left_seconds])
    save_cached(runner, pool, cast(DiskTier, disk), lambda: next(moments))

    assert len(disk.saved) == num_saved
    assert disk.waits == [left_seconds] * num_saved


def test_copies_both_ways_count() -> None:
    """By their number and time the node learns how fast copies are."""
    runner = mock_runner()
    store = HostBlockStore[BlockKv](8 * BLOCK_BYTES, BLOCK_BYTES)
    contents = read_blocks(runner, [5, 6, 7])
    sequence = cast(Sequence, None)  # whose they are is of no interest
    outs = [SwapOut(BlockId(index), BlockHash(bytes([index]) * 16)) for index in range(2)]
    swaps = BlockSwaps(outs, [SwapIn(sequence, [1, 2, 3], 0, contents), SwapIn(sequence, [4], 0, contents[:1])])

    assert swap_blocks(runner, swaps, store) == 2 + 4
    assert store.num_blocks == 2
