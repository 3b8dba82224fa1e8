"""Blocks that other nodes ask for: read in pieces that fit between passes, from whatever is cached then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from baton.engine.events import TokenReady
from baton.engine.kv_cache.block_reads import BlockRead, BlockReads, HeldBlocks
from baton.engine.kv_cache.ingest import GapBudget
from baton.engine.runners.base import BlockKv, Launched, LayerKv, Span
from baton.engine.runners.mock import MockRunner
from baton.errors import NotFoundError
from baton.kv.hashing import BlockHash, block_hashes, root_hash
from baton.kv.pool import BlockPool, HostBlockStore
from engine.rig import GREEDY, LAYOUT, TIMEOUT_SECONDS, Rig, mock_runner, prompt_of, request_of

NUM_LAYERS = LAYOUT.num_layers
HASHES = [BlockHash(bytes([index]) * 16) for index in range(4)]


class Clock:
    """Every look at it takes a second."""

    seconds = 0.0

    def __call__(self) -> float:
        """Return the time."""
        self.seconds += 1.0
        return self.seconds


class Paced(MockRunner):
    """Takes a millisecond for each byte that is read."""

    seconds = 0.0

    def read_kv(self, *arguments: Any) -> LayerKv:
        """Read, and let the time pass."""
        kv = super().read_kv(*arguments)
        self.seconds += 1e-3 * (len(kv.keys) + len(kv.values))
        return kv


def cached(runner: MockRunner | None = None, clock: Callable[[], float] | None = None) -> tuple[BlockPool, BlockReads]:
    """Return a pool that has the blocks, and their reads."""
    runner = runner or mock_runner()
    pool = BlockPool(runner.num_blocks, runner.block_tokens)
    block_ids = pool.allocate(len(HASHES))
    for block_id, block_hash in zip(block_ids, HASHES, strict=True):
        pool.store(block_id, block_hash)
    pool.release(block_ids)
    held = HeldBlocks(runner, pool, HostBlockStore[BlockKv](0, 1))
    return pool, BlockReads(held, GapBudget(), clock or Clock())


def asked(reads: BlockReads) -> Future[list[LayerKv]]:
    """Ask for all layers of the blocks."""
    answer: Future[list[LayerKv]] = Future()
    reads.add(BlockRead(HASHES, range(NUM_LAYERS), answer))
    return answer


def test_everything_is_read_at_once_where_nobody_generates() -> None:
    """Layer by layer, with all positions of each; afterwards no block is held."""
    pool, reads = cached()
    answers = [asked(reads), asked(reads)]

    reads.run(1.0, num_running=0)

    num_bytes = len(HASHES) * pool.block_tokens * LAYOUT.num_token_bytes()
    for answer in answers:
        assert sum(len(kv.keys) + len(kv.values) for kv in answer.result(0)) == num_bytes
    assert not reads.queue
    pool.check_integrity([])


def test_a_gap_reads_a_layer_at_least_and_no_more_than_fits() -> None:
    """Each read takes a second here, a tenth of a pass of one second is less: a layer per gap."""
    pool, reads = cached()
    answer = asked(reads)

    for _ in range(NUM_LAYERS - 1):
        reads.run(1.0, num_running=10)
        assert not answer.done()
        pool.check_integrity([])
    reads.run(1.0, num_running=10)

    assert len(answer.result(0)) == NUM_LAYERS


def test_a_gap_keeps_up_with_what_has_come_since_the_one_before() -> None:
    """All of it, as long as that takes a few passes, however many sequences run."""
    runner = cast(Paced, mock_runner(kind=Paced))
    _, reads = cached(runner, lambda: runner.seconds)
    for _ in range(4):
        asked(reads)
    reads.run(1.0, num_running=0)

    new = asked(reads)
    reads.run(1.0, num_running=1000)

    assert new.done()


def test_what_has_left_the_cache_between_two_pieces_is_not_read() -> None:
    """Whoever asked hears of it."""
    pool, reads = cached()
    answer = asked(reads)
    reads.run(1.0, num_running=10)

    pool.forget(pool.match(HASHES)[2:])
    reads.run(1.0, num_running=10)

    with pytest.raises(NotFoundError, match="2 blocks have left"):
        answer.result(0)
    assert not reads.queue


def test_what_nobody_wants_any_more_is_not_read() -> None:
    """A caller that has gone costs no gap."""
    _, reads = cached()
    gone, wanted = asked(reads), asked(reads)
    assert gone.cancel()

    for _ in range(NUM_LAYERS):
        reads.run(1.0, num_running=10)

    assert wanted.done()


def test_a_runner_that_fails_fails_the_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks are released, and the next read goes on."""
    runner = mock_runner()
    pool, reads = cached(runner)
    failing, sound = asked(reads), asked(reads)
    with monkeypatch.context() as patch:
        patch.setattr(runner, "read_kv", lambda *_: 1 / 0)
        reads.run(1.0, num_running=10)
    reads.run(1.0, num_running=0)

    assert isinstance(failing.exception(0), ZeroDivisionError)
    assert len(sound.result(0)) == NUM_LAYERS
    pool.check_integrity([])


class Recording(MockRunner):
    """Notes launches, by how many passes each is, and reads, as 0."""

    done: list[int]

    def launch(self, spans: Sequence[Span], *, num_steps: int = 1, **options: Any) -> Launched:
        """Note a launch."""
        self.done.append(num_steps)
        return super().launch(spans, num_steps=num_steps, **options)

    def read_kv(self, *arguments: Any) -> LayerKv:
        """Note a read."""
        self.done.append(0)
        return super().read_kv(*arguments)


def test_a_node_that_generates_alone_reads_between_single_passes() -> None:
    """It launches several at once where nobody waits for a gap; whoever wants blocks does."""
    runner = cast(Recording, mock_runner(kind=Recording))
    runner.done = []
    prompt = prompt_of(41)
    hashes = block_hashes(root_hash(LAYOUT.model_revision_digest, 4), prompt, 4)
    with Rig(runner) as rig:
        rig.generate(request_of(prompt, "cached"))
        generating = rig.submit(request_of(prompt_of(8, 5), "long", replace(GREEDY, max_tokens=200)))
        generating.until(TokenReady)

        # Asked for between two passes: else the engine might be done with one before the next is asked for.
        answers = rig.do(lambda: [rig.engine.read_blocks(hashes, range(NUM_LAYERS)) for _ in range(8)])
        for answer in cast(list[Future[list[LayerKv]]], answers):
            assert len(answer.result(TIMEOUT_SECONDS)) == NUM_LAYERS
        generating.result()

    first, last = runner.done.index(0), len(runner.done) - runner.done[::-1].index(0)
    between = runner.done[first:last]
    assert max(runner.done) > 1
    assert max(between) <= 1
    assert between.count(0) == 8 * NUM_LAYERS
