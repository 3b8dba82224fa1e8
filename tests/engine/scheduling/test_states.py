"""Sequences of models whose layers keep a state: it stands for all positions before it, and for no part of them."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from baton.engine.request import Purpose
from baton.engine.scheduling.admission import SchedulerLimits
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.sequence import Phase, Sequence, new_sequence
from baton.kv.hashing import BlockHash
from baton.kv.pool import BlockPool
from engine.rig import INFO, LAYOUT, prompt_of, request_of

BLOCK_TOKENS = 4


def scheduler_of() -> Scheduler:
    """Return a scheduler with four slots for states."""
    return Scheduler(BlockPool(16, BLOCK_TOKENS), SchedulerLimits(4, 64), num_state_slots=4)


def added(scheduler: Scheduler, purpose: Purpose = Purpose.GENERATE) -> Sequence:
    """Return a waiting sequence of four full blocks and a token."""
    sequence = new_sequence(
        request_of(prompt_of(4 * BLOCK_TOKENS + 1), purpose.name, purpose=purpose),
        max_context_tokens=INFO.max_context_tokens,
        max_pool_tokens=INFO.max_context_tokens,
        eos_token_ids=(),
        model_revision_digest=LAYOUT.model_revision_digest,
        block_tokens=BLOCK_TOKENS,
    )
    sequence.extend_hashes(BLOCK_TOKENS)
    scheduler.add(sequence)
    return sequence


def keep(pool: BlockPool, hashes: Seq[BlockHash]) -> None:
    """Have something cached under each hash."""
    block_ids = pool.allocate(len(hashes))
    for block_id, block_hash in zip(block_ids, hashes, strict=True):
        pool.store(block_id, block_hash)
    pool.release(block_ids)


@pytest.mark.parametrize(
    ("num_cached_blocks", "checkpoints", "num_found_tokens"),
    [(4, [2, 4], 16), (2, [2, 4], 8), (3, [2, 4], 8), (3, [1, 4], 4), (3, [4], 0), (4, [], 0), (0, [2], 0)],
)
def test_a_sequence_goes_on_from_the_deepest_state_whose_blocks_are_there_too(
    num_cached_blocks: int, checkpoints: list[int], num_found_tokens: int
) -> None:
    """Where a deeper one has lost blocks before it, the one before that serves."""
    scheduler = scheduler_of()
    sequence = added(scheduler)
    keep(scheduler.pool, sequence.hashes[:num_cached_blocks])
    keep(scheduler.states.pool, [sequence.hashes[num_blocks - 1] for num_blocks in checkpoints])

    step = scheduler.schedule()

    assert step.sequences == [sequence]
    assert step.spans[0].start == num_found_tokens
    scheduler.check_integrity()


@pytest.mark.parametrize(("num_received_tokens", "num_computed"), [(0, 0), (9, 0), (15, 0), (16, 16), (17, 16)])
def test_a_state_counts_as_received_when_it_stands_for_the_whole_prompt(
    num_received_tokens: int, num_computed: int
) -> None:
    """After a part of a stream the prompt is computed here from its beginning."""
    scheduler = scheduler_of()
    sequence = added(scheduler, Purpose.RECEIVE)
    scheduler.schedule()
    assert sequence.phase is Phase.RECEIVING

    scheduler.fall_back(sequence, num_received_tokens)

    assert sequence.num_computed == (num_computed if num_received_tokens <= 16 else 0)
    assert sequence.phase is Phase.RUNNING
    scheduler.check_integrity()


def receiving_beside_a_checkpoint() -> tuple[Scheduler, Sequence]:
    """Return a sequence that found a checkpoint after two blocks, holds it, and has a slot for what is to come."""
    scheduler = scheduler_of()
    sequence = added(scheduler, Purpose.RECEIVE)
    keep(scheduler.pool, sequence.hashes[:2])
    keep(scheduler.states.pool, sequence.hashes[1:2])
    scheduler.schedule()
    assert len(scheduler.states.slots_of(sequence)) == 2
    return scheduler, sequence


def test_who_receives_a_state_holds_no_checkpoint_any_more() -> None:
    """Its slot has all that the checkpoint had; others may have the checkpoint's place."""
    scheduler, sequence = receiving_beside_a_checkpoint()

    sequence.token_ids.append(5)
    scheduler.commit_received(sequence)

    assert sequence.num_computed == 17
    assert len(scheduler.states.slots_of(sequence)) == 1
    scheduler.check_integrity()


def test_what_spoiled_logits_came_from_is_in_no_cache_any_more() -> None:
    """Neither its blocks nor any state: the next request with that beginning would say the same."""
    scheduler = scheduler_of()
    sequence = added(scheduler)
    keep(scheduler.pool, sequence.hashes[:4])
    keep(scheduler.states.pool, sequence.hashes[3:4])
    assert scheduler.schedule().spans[0].start == 16

    scheduler.invalidate_cache(sequence)
    scheduler.finish(sequence)

    assert scheduler.pool.match(sequence.hashes) == []
    assert scheduler.states.deepest(sequence.hashes, 4) == 0
    scheduler.check_integrity()


def test_who_received_a_part_goes_on_from_the_checkpoint_that_it_had() -> None:
    """Its slot has nothing yet: the checkpoint is copied there when the rest is computed."""
    scheduler, sequence = receiving_beside_a_checkpoint()

    scheduler.fall_back(sequence, 9)

    assert sequence.num_computed == 8
    assert len(scheduler.states.slots_of(sequence)) == 2
    scheduler.check_integrity()
