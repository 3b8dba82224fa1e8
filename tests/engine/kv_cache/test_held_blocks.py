"""Blocks that a node can hand out, wherever it holds them."""

from __future__ import annotations

from itertools import product

import pytest

from baton.engine.kv_cache.block_reads import HeldBlocks
from baton.engine.runners.base import BlockKv, LayerKv, Runner, Span
from baton.errors import NotFoundError
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockId, BlockPool, HostBlockStore
from engine.rig import LAYOUT, mock_runner, prompt_of

NUM_BLOCKS = 4
BLOCK_BYTES = 4 * LAYOUT.num_token_bytes()
HASHES = [BlockHash(bytes([index]) * 16) for index in range(NUM_BLOCKS)]


class Held:
    """A prompt of four blocks, each on the device, in host memory, in both or nowhere."""

    def __init__(self, places: str) -> None:
        self.runner: Runner = mock_runner()
        self.pool = BlockPool(self.runner.num_blocks, self.runner.block_tokens)
        self.store = HostBlockStore[BlockKv](NUM_BLOCKS * BLOCK_BYTES, BLOCK_BYTES)
        self.blocks = HeldBlocks(self.runner, self.pool, self.store)
        self.block_ids = self.pool.allocate(NUM_BLOCKS)
        self.runner.forward([Span(prompt_of(16), 0, self.block_ids, needs_logits=False)])
        contents = self.runner.begin_copies(self.block_ids).blocks()
        for index, place in enumerate(places):
            if place in "db":
                self.pool.store(self.block_ids[index], HASHES[index])
            if place in "hb":
                self.store.put(HASHES[index], contents[index])
        self.pool.release(self.block_ids)

    def expected(self, layer: int) -> LayerKv:
        """Return K and V of all blocks in a layer, as the device has them."""
        return self.runner.read_kv(self.block_ids, layer, 0, NUM_BLOCKS * self.runner.block_tokens)


@pytest.mark.parametrize("places", ["".join(each) for each in product("dh", repeat=NUM_BLOCKS)] + ["bhbd"])
def test_every_byte_is_that_of_the_device(places: str) -> None:
    """In whichever order device and host memory have them; nothing is held afterwards."""
    held = Held(places)

    assert held.blocks.count(HASHES) == NUM_BLOCKS
    for layer in range(LAYOUT.num_layers):
        kv, expected = held.blocks.read(HASHES, layer), held.expected(layer)
        assert (bytes(kv.keys), bytes(kv.values)) == (bytes(expected.keys), bytes(expected.values))
        assert len(kv.keys) + len(kv.values) == NUM_BLOCKS * held.blocks.block_bytes(layer)
    held.pool.check_integrity([])


@pytest.mark.parametrize(("places", "count"), [("dd-d", 2), ("dh-h", 2), ("-ddd", 0), ("hhh-", 3), ("----", 0)])
def test_a_block_that_is_nowhere_ends_the_prefix(places: str, count: int) -> None:
    """And to ask for it all the same is an error that says how many have gone."""
    held = Held(places)

    assert held.blocks.count(HASHES) == count
    with pytest.raises(NotFoundError, match=f"{places.count('-')} blocks have left") as caught:
        held.blocks.read(HASHES, 0)
    assert caught.value.reason == "BLOCKS_EVICTED"
    held.pool.check_integrity([])


def test_what_is_handed_out_counts_as_used() -> None:
    """In either place, what was not asked for goes first."""
    held = Held("ddhh")

    held.blocks.read([HASHES[0], HASHES[2]], 0)

    assert [each.block_hash for each in held.pool.next_evicted(2)] == [HASHES[1], HASHES[0]]
    assert held.store.hashes == [HASHES[3], HASHES[2]]
    assert held.pool.match([HASHES[0]]) == [BlockId(0)]
