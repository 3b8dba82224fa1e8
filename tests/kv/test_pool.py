"""The block pool against a model that keeps plain sets and counts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from baton.errors import OutOfMemoryError
from baton.kv.hashing import BlockEvents, BlockHash, Tier
from baton.kv.pool import BlockChanges, BlockId, BlockPool

MAX_CHAIN = 6
CHAINS = [[BlockHash(bytes([chain, index]) * 8) for index in range(MAX_CHAIN)] for chain in range(3)]
"""Three prompts by the hashes of their blocks."""


class PoolMachine(RuleBasedStateMachine):
    """Sequences that take a cached prefix, allocate the rest, store what they computed and release everything."""

    @initialize(num_blocks=st.integers(1, 12))
    def make_pool(self, num_blocks: int) -> None:
        """Begin with free blocks."""
        self.pool = BlockPool(num_blocks, block_tokens=4)
        self.tables: list[list[BlockId]] = []
        self.chains: list[list[BlockHash]] = []
        self.known: set[BlockHash] = set()
        self.stores: list[BlockHash] = []

    @rule(chain=st.integers(0, 2), num_blocks=st.integers(1, MAX_CHAIN))
    def admit(self, chain: int, num_blocks: int) -> None:
        """Take a prompt in, if there is room."""
        hashes = CHAINS[chain][:num_blocks]
        cached = self.pool.match(hashes)
        assert cached == self.pool.match(hashes)
        num_missing = num_blocks - len(cached)
        num_beside = self.pool.num_available_beside(cached)
        before = self.pool.num_available

        if num_missing > num_beside:
            if num_missing > before:
                with pytest.raises(OutOfMemoryError):
                    self.pool.allocate(num_missing)
            assert self.pool.num_available == before
            return
        self.pool.acquire(cached)
        assert self.pool.num_available == num_beside
        fresh = self.pool.allocate(num_missing)

        assert self.pool.num_available == num_beside - num_missing
        assert not {block_id for table in self.tables for block_id in table} & set(fresh)
        assert not set(cached) & set(fresh)
        self.tables.append(cached + fresh)
        self.chains.append(hashes)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        """Offer the leading blocks of a sequence to the prefix cache."""
        index = data.draw(st.integers(0, len(self.tables) - 1))
        num_stored = data.draw(st.integers(0, len(self.tables[index])))
        for block_id, block_hash in list(zip(self.tables[index], self.chains[index], strict=True))[:num_stored]:
            self.pool.store(block_id, block_hash)

            assert self.pool.match([block_hash])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """End a sequence; what it stored can still be hit."""
        index = data.draw(st.integers(0, len(self.tables) - 1))
        hashes = set(self.pool.hashes)
        self.pool.release(self.tables.pop(index))
        self.chains.pop(index)

        assert set(self.pool.hashes) == hashes

    @rule()
    def drain_events(self) -> None:
        """The events, applied to what was known, give what can be hit; nothing is stored and removed at once."""
        events = self.pool.changes.drain()

        assert not set(events.stored) & set(events.removed)
        assert not set(events.stored) & self.known
        assert set(events.removed) <= self.known
        self.known = self.known - set(events.removed) | set(events.stored)
        assert self.known == set(self.pool.hashes)
        assert self.pool.changes.drain() == BlockEvents([], [])

    @invariant()
    def is_sound(self) -> None:
        """No block is lost, doubled or miscounted."""
        if not hasattr(self, "pool"):
            return
        self.pool.check_integrity(self.tables)
        held = {block_id for table in self.tables for block_id in table}
        assert self.pool.num_available == self.pool.num_blocks - len(held)


PoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestPool = PoolMachine.TestCase


def filled(num_blocks: int, chain: list[BlockHash]) -> tuple[BlockPool, list[BlockId]]:
    """Return a pool with one stored and released prompt, and the blocks it had."""
    pool = BlockPool(num_blocks, block_tokens=4)
    table = pool.allocate(len(chain))
    for block_id, block_hash in zip(table, chain, strict=True):
        pool.store(block_id, block_hash)
    pool.release(table)
    return pool, table


def test_free_blocks_go_before_cached_ones() -> None:
    """The prefix cache costs nothing while there is room."""
    pool, table = filled(4, CHAINS[0][:2])

    assert not set(pool.allocate(2)) & set(table)
    assert pool.match(CHAINS[0]) == table


def test_the_tail_of_a_prompt_is_evicted_before_its_head() -> None:
    """A prefix without its head is worth nothing."""
    pool, table = filled(4, CHAINS[0][:4])

    pool.allocate(2)

    assert pool.match(CHAINS[0]) == table[:2]


def test_the_least_recently_used_prompt_is_evicted_first() -> None:
    """A hit counts as use."""
    pool, first = filled(4, CHAINS[0][:2])
    second = pool.allocate(2)
    for block_id, block_hash in zip(second, CHAINS[1], strict=False):
        pool.store(block_id, block_hash)
    pool.release(second)
    pool.acquire(first)
    pool.release(first)

    pool.allocate(2)

    assert pool.match(CHAINS[0]) == first
    assert pool.match(CHAINS[1]) == []


def test_a_block_stored_and_evicted_between_two_looks_leaves_no_event() -> None:
    """Events are in net."""
    pool, _ = filled(1, CHAINS[0][:1])
    pool.allocate(1)

    assert pool.changes.drain() == BlockEvents([], [])


def test_of_two_blocks_with_one_hash_the_first_stays() -> None:
    """The second is freed as an ordinary block."""
    pool = BlockPool(2, block_tokens=4)
    first, second = pool.allocate(2)
    pool.store(first, CHAINS[0][0])
    pool.store(second, CHAINS[0][0])

    pool.release([second])

    assert pool.match(CHAINS[0]) == [first]
    pool.check_integrity([[first]])


def test_a_refused_allocation_takes_nothing() -> None:
    """Not even in part."""
    pool = BlockPool(3, block_tokens=4)

    with pytest.raises(OutOfMemoryError, match="4 KV blocks wanted, 3 available"):
        pool.allocate(4)

    assert pool.num_available == 3


@pytest.mark.parametrize(
    ("tables", "cause"),
    [([[]], "0 owners"), ([[0], [0]], "2 owners"), ([[0, 1]], "block 1"), ([[1]], "block 0")],
)
def test_the_integrity_check_names_the_block_that_is_lost_or_doubled(tables: list[list[int]], cause: str) -> None:
    """The check must be able to fail."""
    pool = BlockPool(2, block_tokens=4)
    pool.allocate(1)

    with pytest.raises(AssertionError, match=cause):
        pool.check_integrity([[BlockId(block_id) for block_id in table] for table in tables])


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (4, 1), (5, 2)])
def test_positions_fill_blocks_one_after_the_other(num_tokens: int, num_blocks: int) -> None:
    """The last block may be partial."""
    assert BlockPool(1, block_tokens=4).num_blocks_for(num_tokens) == num_blocks


def test_changes_leave_in_messages_of_a_size_and_none_is_lost() -> None:
    """Removals first; what does not fit is in the next message, once."""
    changes = BlockChanges(Tier.HOST)
    for block_hash in CHAINS[0][:3]:
        changes.remove(block_hash)
    for block_hash in CHAINS[1][:3]:
        changes.store(block_hash)

    messages = [changes.drain(2) for _ in range(3)]

    assert messages == [
        BlockEvents([], CHAINS[0][:2], Tier.HOST),
        BlockEvents(CHAINS[1][:1], CHAINS[0][2:3], Tier.HOST),
        BlockEvents(CHAINS[1][1:3], [], Tier.HOST),
    ]
    assert not changes


def test_after_a_snapshot_only_what_it_does_not_say_is_told() -> None:
    """Lower tiers follow it as changes; what was gone before is in no snapshot, and no change."""
    changes = BlockChanges(Tier.HOST)
    changes.store(CHAINS[0][0])
    changes.remove(CHAINS[0][1])

    changes.restart(CHAINS[1][:2])

    assert changes.drain() == BlockEvents(CHAINS[1][:2], [], Tier.HOST)
    changes.remove(CHAINS[0][1])
    changes.restart()
    assert not changes
