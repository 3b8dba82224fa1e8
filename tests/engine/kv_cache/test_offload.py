"""What is copied out of a device's memory, and for whom."""

from __future__ import annotations

from typing import cast

import pytest

from baton.engine.kv_cache.disk_tier import DiskTier
from baton.engine.kv_cache.offload import AHEAD_BLOCKS, Offload, SwapOut, TierHits, is_copied
from baton.engine.runners.base import BlockKv
from baton.engine.sequence import Sequence, new_sequence
from baton.engine.step_cost import StepCost, StepCostModel
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockId, BlockPool, HostBlockStore
from engine.rig import prompt_of, request_of

COST = StepCost(fixed_seconds=1.0, token_seconds=1e-4, pair_seconds=1e-9)
COSTLY = StepCost(fixed_seconds=0.0, token_seconds=0.25, pair_seconds=0.0)
"""A block of 4 costs a second."""


@pytest.mark.parametrize(
    ("num_tokens", "bytes_per_second", "cost", "expected"),
    [
        (1000, 1e9, None, True),
        (1000, 0.0, COST, True),
        (1000, 1e9, COST, False),  # 2 copies of 100 MB: 200 ms; computed in 100.5 ms
        (1000, 2e9, COST, True),
        (1_000_000, 1e9, COST, True),  # attention: 500 s more
        (1000, 1e9, StepCost(1.0, 0.0, 0.0), False),
    ],
)
def test_kv_is_moved_where_two_copies_are_quicker_than_the_computation(
    num_tokens: int, bytes_per_second: float, cost: StepCost | None, *, expected: bool
) -> None:
    """Where either is unknown, a copy tells."""
    num_bytes = 100_000 * num_tokens

    assert is_copied(0, num_tokens, num_bytes=2 * num_bytes, bytes_per_second=bytes_per_second, cost=cost) is expected


def _offload(max_blocks: int = 100, cost: StepCost = COSTLY, disk: Disk | None = None) -> Offload:
    store = HostBlockStore[BlockKv](max_blocks * 10, 10)
    return Offload(store, FixedCost(cost), block_bytes=10, block_tokens=4, disk=cast(DiskTier | None, disk))


class FixedCost(StepCostModel):
    """A model that has nothing to learn."""

    def __init__(self, cost: StepCost) -> None:
        super().__init__()
        self._fixed = cost

    @property
    def cost(self) -> StepCost:
        """Return what passes cost."""
        return self._fixed


def _sequence(name: str = "r") -> Sequence:
    """Return a sequence of 5 full blocks."""
    sequence = new_sequence(
        request_of(prompt_of(21), name),
        max_context_tokens=100,
        max_pool_tokens=100,
        eos_token_ids=(),
        model_revision_digest="a",
        block_tokens=4,
    )
    sequence.extend_hashes(4)
    sequence.num_stored_blocks = 5
    return sequence


def _evict_all(offload: Offload, sequence: Sequence) -> list[SwapOut]:
    for block_index, block_hash in enumerate(sequence.hashes):
        offload.note_evicted(BlockId(block_index), block_hash)
    return offload.drain(BlockPool(1, 4))


def test_blocks_are_copied_out_while_a_preempted_sequence_wants_them() -> None:
    """Two want the same; the last to come back ends it."""
    offload, first, second = _offload(), _sequence("first"), _sequence("second")
    for sequence in (first, second):
        offload.keep(sequence)
    offload.note_copied(1, 20.0)  # so slow that nothing else is copied

    assert len(_evict_all(offload, first)) == 5
    offload.drop(first)
    offload.drop(first)
    assert len(_evict_all(offload, first)) == 5
    offload.drop(second)
    assert _evict_all(offload, first) == []


def test_what_is_there_already_is_not_copied_again() -> None:
    """It is the same content."""
    offload, sequence = _offload(), _sequence()
    offload.keep(sequence)
    offload.store.put(sequence.hashes[0], ())

    assert [moved.block_id for moved in _evict_all(offload, sequence)] == [1, 2, 3, 4]


def test_no_more_is_wanted_than_there_is_room_for() -> None:
    """The head: what follows is of no use without it."""
    offload, sequence = _offload(max_blocks=2), _sequence()

    offload.keep(sequence)

    assert sequence.begin_restore().kept_hashes == sequence.hashes[:2]


def test_slow_copies_make_the_node_compute_again() -> None:
    """One slow copy among fast ones does not: it may have waited for the device."""
    offload, sequence = _offload(cost=COST), _sequence()
    offload.note_copied(5, 1e-6)
    offload.note_copied(5, 10.0)
    offload.keep(sequence)
    assert sequence.begin_restore().kept_hashes

    offload.drop(sequence)
    for _ in range(100):
        offload.note_copied(5, 10.0)
    offload.keep(sequence)

    assert not sequence.begin_restore().kept_hashes


def test_of_what_nobody_waits_for_the_heads_are_copied_out() -> None:
    """As much as may delay a pass, and only if it is quicker than to compute it."""
    offload, sequence = _offload(), _sequence()
    for seconds in (0.05, 0.9):  # one long pass is no reason for long copies
        offload.note_pass(seconds)
    offload.note_copied(1, 0.02)  # 2 blocks in the time that a pass may lose

    assert [moved.block_id for moved in _evict_all(offload, sequence)] == [3, 4]
    for _ in range(100):
        offload.note_copied(1, 0.6)
    assert _evict_all(offload, sequence) == []


def test_copies_that_were_slow_are_tried_again() -> None:
    """The first one may have waited for the device."""
    offload, sequence = _offload(), _sequence()
    offload.note_copied(1, 1.0)

    assert any(_evict_all(offload, sequence) for _ in range(800))


def test_blocks_that_are_next_go_along() -> None:
    """The passes after need not wait for the device again; what is in host memory stays where it is."""
    offload, pool, sequence = _offload(), BlockPool(5, 4), _sequence()
    pool.on_evict = offload.note_evicted
    table = pool.allocate(5)
    for block_id, block_hash in zip(table, sequence.hashes, strict=True):
        pool.store(block_id, block_hash)
    pool.release(table)
    offload.store.put(sequence.hashes[3], ())

    pool.allocate(1)
    moved = offload.drain(pool)

    assert [each.block_hash for each in moved] == [sequence.hashes[index] for index in (4, 2, 1, 0)]
    assert offload.drain(pool) == []


def test_no_more_go_along_than_are_copied_at_once() -> None:
    """Those that are evicted now count, too."""
    offload, pool = _offload(), BlockPool(AHEAD_BLOCKS + 16, 4)
    pool.on_evict = offload.note_evicted
    table = pool.allocate(pool.num_blocks)
    for block_id in table:
        pool.store(block_id, BlockHash(block_id.to_bytes(16, "big")))
    pool.release(table)

    pool.allocate(8)

    assert len(offload.drain(pool)) == AHEAD_BLOCKS


def test_contents_are_restored_where_that_is_quicker_than_to_compute_them() -> None:
    """One copy decides: the one out has been made."""
    offload, sequence = _offload(), _sequence()
    for block_hash in sequence.hashes:
        offload.store.put(block_hash, ())

    offload.note_copied(1, 0.9)
    assert len(offload.take_run(sequence.hashes, 2)) == 3
    for _ in range(100):
        offload.note_copied(1, 1.1)
    assert offload.take_run(sequence.hashes, 2) == []


class Disk:
    """Has every block, and hands none over."""

    def __init__(self, bytes_per_second: float) -> None:
        self.store = self
        self.bytes_per_second = bytes_per_second
        self.asked_for: list[list[BlockHash]] = []
        self.forgotten: list[BlockHash] = []

    def __contains__(self, block_hash: object) -> bool:
        return True

    def read(self, hashes: list[BlockHash], on_read: object) -> None:
        """Note what is asked for."""
        self.asked_for.append(hashes)

    def forget(self, hashes: list[BlockHash]) -> None:
        """Note what is to be dropped."""
        self.forgotten += hashes


@pytest.mark.parametrize(
    ("read_seconds", "copy_seconds", "is_read"),
    [(0.0, 5.0, True), (0.9, 0.0, True), (1.1, 0.0, False), (0.7, 0.2, True), (0.7, 0.4, False)],
)
def test_blocks_are_read_from_disk_where_that_is_quicker_than_to_compute_them(
    read_seconds: float, copy_seconds: float, *, is_read: bool
) -> None:
    """Each is read and copied in, or computed in a second; until both are measured, what is known decides."""
    disk = Disk(10 / read_seconds if read_seconds else 0.0)
    offload, sequence = _offload(disk=disk), _sequence()
    if copy_seconds:
        offload.note_copied(1, copy_seconds)

    assert offload.is_reading(sequence, sequence.hashes, 2) is is_read
    assert disk.asked_for == ([sequence.hashes[2:]] if is_read else [])


def test_who_has_parts_from_host_memory_still_has_the_rest_read_from_disk() -> None:
    """What is being restored in parts has not been read yet; once it has, it is not read again."""
    disk = Disk(0.0)
    offload, sequence = _offload(disk=disk), _sequence()
    restore = sequence.begin_restore()

    assert offload.is_reading(sequence, sequence.hashes, 2)
    restore.is_reading = False
    assert not offload.is_reading(sequence, sequence.hashes, 2)
    assert disk.asked_for == [sequence.hashes[2:]]


def test_what_was_read_from_disk_counts_as_found_there_and_no_more() -> None:
    """The rest of what is copied to the device was in host memory."""
    offload, sequence = _offload(disk=Disk(0.0)), _sequence()
    restore = sequence.begin_restore()
    run = sequence.hashes[:3]
    for block_hash in run[:2]:
        offload.store.put(block_hash, ())

    offload._take_in(restore, run, run[2:], [()])
    offload.note_admitted(sequence, 0, 3)

    assert offload.hits == TierHits(0, 8, 4)


def test_contents_that_may_be_wrong_are_dropped_from_every_tier() -> None:
    """On disk they would outlive the process, and spoil what the next one says."""
    disk = Disk(1.0)
    offload, sequence = _offload(disk=disk), _sequence()
    for block_hash in sequence.hashes:
        offload.store.put(block_hash, ())

    offload.forget(sequence.hashes[1:3])

    assert disk.forgotten == sequence.hashes[1:3]
    assert [block_hash in offload.store for block_hash in sequence.hashes] == [True, False, False, True, True]
