"""Blocks on their way to host memory and back."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Timer
from time import perf_counter
from typing import cast

import pytest

from baton.engine.kv_cache.block_copy import READ_BLOCKS, SAVE_SECONDS, save_cached, swap_blocks, write_blocks
from baton.engine.kv_cache.disk_tier import DiskTier
from baton.engine.kv_cache.offload import MAX_COMING_BLOCKS, BlockSwaps, Offload, SwapIn, SwapOut
from baton.engine.runners.base import BlockCopies, BlockKv, Runner, Span
from baton.engine.sequence import Sequence as Member
from baton.engine.step_cost import StepCostModel
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockId, BlockPool, HostBlockStore
from engine.rig import LAYOUT, TIMEOUT_SECONDS, expected_tokens, mock_runner, prompt_of

BLOCK_BYTES = 4 * LAYOUT.num_token_bytes()


def test_a_sequence_goes_on_from_blocks_that_were_out_and_are_elsewhere() -> None:
    """Every byte of every layer comes back: the mock's next token depends on each."""
    runner, prompt = mock_runner(), prompt_of(19)
    runner.forward([Span(prompt[:16], 0, [9, 3, 4, 30], needs_logits=False)])

    contents = runner.begin_copies([3, 4, 30]).blocks()
    runner.forward([Span(prompt_of(16, seed=5), 0, [30, 3, 4, 20], needs_logits=False)])
    write_blocks(runner, [9, 50, 51, 2], 1, contents)

    logits = runner.forward([Span(prompt[16:], 16, [9, 50, 51, 2, 7], needs_logits=True)])
    assert logits.argmax() == expected_tokens(prompt, 1)
    assert all(sum(len(half) for layer in block for half in layer) == BLOCK_BYTES for block in contents)


def _offload(num_blocks: int, disk: DiskTier | None = None) -> Offload:
    store = HostBlockStore[BlockKv](num_blocks * BLOCK_BYTES, BLOCK_BYTES)
    return Offload(store, StepCostModel(), block_bytes=BLOCK_BYTES, block_tokens=4, disk=disk)


def _outs(num_blocks: int) -> list[SwapOut]:
    return [SwapOut(BlockId(index), BlockHash(index.to_bytes(16, "little"))) for index in range(num_blocks)]


def test_more_blocks_than_are_read_at_once_go_out() -> None:
    """Each under its own hash."""
    num_blocks = 2 * READ_BLOCKS + 3
    runner, offload, outs = mock_runner(num_blocks=num_blocks), _offload(num_blocks), _outs(num_blocks)
    runner.forward([Span(prompt_of(4 * num_blocks), 0, range(num_blocks), needs_logits=False)])

    with ThreadPoolExecutor(1) as lane:
        swap_blocks(runner, BlockSwaps(outs), offload, lane, perf_counter)
    found = offload.store.take_run([each.block_hash for each in outs])
    assert [tuple(block) for block in found] == runner.begin_copies(range(num_blocks)).blocks()


class LateRunner:
    """Has its blocks copied when it is told to; or not, if there is an error."""

    block_tokens = 4

    def __init__(self, error: Exception | None = None) -> None:
        self._blocks = list[BlockKv]()
        self._error = error
        self.has_come = Event()

    def begin_copies(self, block_ids: Sequence[int]) -> BlockCopies:
        """Begin."""
        self._blocks = mock_runner().begin_copies([0] * len(block_ids)).blocks()
        return self  # type: ignore[return-value]

    def wait(self) -> None:
        """Wait until it is told."""
        assert self.has_come.wait(TIMEOUT_SECONDS)
        if self._error:
            raise self._error

    def blocks(self) -> list[BlockKv]:
        """Return the blocks."""
        return self._blocks


def test_nobody_waits_for_a_copy_but_who_wants_it() -> None:
    """Blocks are found as soon as they are on their way; the rate is measured when they have come."""
    runner, offload, outs = LateRunner(), _offload(2), _outs(2)

    with ThreadPoolExecutor(1) as lane:
        swap_blocks(cast(Runner, runner), BlockSwaps(outs), offload, lane, perf_counter)
        found = offload.store.take_run([each.block_hash for each in outs])
        assert len(found) == 2
        assert offload.rates.host_bytes_per_second == 0.0

        Timer(0.05, runner.has_come.set).start()
        assert [tuple(block) for block in found] == runner.blocks()
        assert len(found[0]) == LAYOUT.num_layers
    assert offload.rates.host_bytes_per_second > 0.0


def test_no_more_is_on_its_way_than_there_is_room_for() -> None:
    """Who copies more waits for what has been begun."""
    runner, num_blocks = LateRunner(), MAX_COMING_BLOCKS + 1
    offload, outs = _offload(num_blocks), _outs(num_blocks)

    with ThreadPoolExecutor(1) as lane, ThreadPoolExecutor(1) as engine:
        swaps = (cast(Runner, runner), BlockSwaps(outs), offload, lane, perf_counter)
        swapped = engine.submit(swap_blocks, *swaps)
        with pytest.raises(TimeoutError):
            swapped.result(timeout=0.1)
        assert offload.store.num_blocks == MAX_COMING_BLOCKS
        runner.has_come.set()
        swapped.result(TIMEOUT_SECONDS)
    assert all(len(block) for block in offload.store.take_run([each.block_hash for each in outs]))
    assert all(offload.room.acquire(blocking=False) for _ in range(MAX_COMING_BLOCKS))


def test_a_copy_that_fails_is_the_error_of_who_wants_it() -> None:
    """The lane goes on."""
    runner, offload, outs = LateRunner(RuntimeError("device lost")), _offload(2), _outs(2)
    runner.has_come.set()

    with ThreadPoolExecutor(1) as lane:
        swap_blocks(cast(Runner, runner), BlockSwaps(outs), offload, lane, perf_counter)
        for block in offload.store.take_run([each.block_hash for each in outs]):
            with pytest.raises(RuntimeError, match="device lost"):
                block[0]
        offload.forget_evicted()
        assert offload.store.num_blocks == 0  # nor is it found any more
        swap_blocks(mock_runner(), BlockSwaps(outs), offload, lane, perf_counter)
    assert all(len(block) for block in offload.store.take_run([each.block_hash for each in outs]))


def test_copies_that_cannot_begin_are_lost_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """However often: a device without memory for them computes on."""

    class FullRunner(LateRunner):
        def begin_copies(self, block_ids: Sequence[int]) -> BlockCopies:
            raise MemoryError("no room on the device")

    offload, outs = _offload(2), _outs(2)
    with ThreadPoolExecutor(1) as lane:
        for _ in range(MAX_COMING_BLOCKS):
            swap_blocks(cast(Runner, FullRunner()), BlockSwaps(outs), offload, lane, perf_counter)
        swap_blocks(mock_runner(), BlockSwaps(outs), offload, lane, perf_counter)

    assert offload.store.num_blocks == 2
    assert "copies_lost blocks=2 cause=MemoryError('no room on the device')" in caplog.text


def test_what_host_memory_has_no_room_for_is_written_to_disk() -> None:
    """Though it is no longer there when it has come; but for what has been forgotten."""
    disk, outs = FakeDisk(), _outs(6)
    offload = _offload(2, disk=cast(DiskTier, disk))
    runner = LateRunner()

    with ThreadPoolExecutor(1) as lane:
        swap_blocks(cast(Runner, runner), BlockSwaps(outs), offload, lane, perf_counter)
        offload.forget([outs[0].block_hash])
        runner.has_come.set()
    offload.write_through()

    assert disk.saved == [each.block_hash for each in outs[1:]]


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

    def call(self, _do: object) -> None:
        """Have nothing done in the engine's thread: there is none."""

    def forget(self, _hashes: object) -> None:
        """Have nothing to forget."""


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
    runner, offload, sequence = mock_runner(), _offload(8), cast(Member, None)  # whose they are is of no interest
    contents = runner.begin_copies([5, 6, 7]).blocks()
    swaps = BlockSwaps(_outs(2), [SwapIn(sequence, [1, 2, 3], 0, contents), SwapIn(sequence, [4], 0, contents[:1])])

    with ThreadPoolExecutor(1) as lane:
        swap_blocks(runner, swaps, offload, lane, perf_counter)
    assert offload.store.num_blocks == 2
    assert offload.rates.host_bytes_per_second > 0.0
