"""Slots and checkpoints of what layers keep of a sequence besides K and V."""

from __future__ import annotations

from baton.engine.kv_cache.state_slots import CHECKPOINT_TOKENS, StateSlots
from baton.engine.runners.base import Span, StateSpan
from baton.engine.sequence import Sequence, new_sequence
from engine.rig import prompt_of, request_of

BLOCK_TOKENS = 4


def sequence_of(prompt: tuple[int, ...]) -> Sequence:
    """Return the sequence of a prompt, hashed."""
    sequence = new_sequence(
        request_of(prompt),
        max_context_tokens=1 << 20,
        max_pool_tokens=1 << 20,
        eos_token_ids=(),
        model_revision_digest="a" * 32,
        block_tokens=BLOCK_TOKENS,
    )
    sequence.extend_hashes(BLOCK_TOKENS)
    return sequence


def place(slots: StateSlots, sequence: Sequence, start: int, end: int) -> StateSpan:
    """Return the slots of a pass over some positions."""
    tokens = [*sequence.token_ids, -1][start:end]
    (span,) = slots.placed([sequence], [Span(tokens, start, [], needs_logits=True)])
    assert span.state is not None
    return span.state


def test_a_sequence_begins_with_no_state_and_goes_on_in_its_slot() -> None:
    """The first pass reads none; the next one what the first one left."""
    slots, sequence = StateSlots(4, BLOCK_TOKENS), sequence_of(prompt_of(3))
    slots.take(sequence, 0)

    assert place(slots, sequence, 0, 3) == StateSpan(None, 0)
    assert place(slots, sequence, 3, 4).source == 0


def test_the_last_full_block_leaves_a_checkpoint_that_another_sequence_goes_on_from() -> None:
    """It holds the checkpoint until a later pass than the one that reads it is launched."""
    slots, first, second = StateSlots(4, BLOCK_TOKENS), sequence_of(prompt_of(11)), sequence_of(prompt_of(11))
    slots.take(first, 0)
    placed = place(slots, first, 0, 11)
    slots.release(first)

    assert [save.end for save in placed.saves] == [8]
    assert slots.deepest(second.hashes, 2) == 2
    assert slots.deepest(second.hashes, 1) == 0
    slots.take(second, 2)
    assert place(slots, second, 8, 11).source == placed.saves[0].slot
    slots.pool.check_integrity([slots.slots_of(second)])
    assert len(slots.slots_of(second)) == 2
    assert place(slots, second, 11, 12).source == slots.slots_of(second)[0]
    assert slots.pool.num_available == 2  # but for its own slot, and the checkpoint that the last pass leaves


def test_a_prefix_that_others_have_is_kept_though_it_had_no_checkpoint() -> None:
    """Blocks were found up to a position at which no state was: the next one with that beginning finds it."""
    slots, sequence = StateSlots(8, BLOCK_TOKENS), sequence_of(prompt_of(20))
    sequence.num_matched_blocks = 2
    slots.take(sequence, 0)

    assert [save.end for save in place(slots, sequence, 0, 20).saves] == [8, 16]


def test_long_prompts_leave_checkpoints_on_the_way() -> None:
    """However a pass cuts them."""
    slots, sequence = StateSlots(8, BLOCK_TOKENS), sequence_of(prompt_of(2 * CHECKPOINT_TOKENS + 1))
    slots.take(sequence, 0)

    ends = [
        save.end
        for start in range(0, 2 * CHECKPOINT_TOKENS, 512)
        for save in place(slots, sequence, start, start + 512).saves
    ]

    assert ends == [CHECKPOINT_TOKENS, 2 * CHECKPOINT_TOKENS]


def test_an_output_keeps_its_last_checkpoint_alone() -> None:
    """Each drops the one before; a token that is not known yet makes none hittable."""
    slots, sequence = StateSlots(8, BLOCK_TOKENS), sequence_of(prompt_of(2))
    slots.take(sequence, 0)
    place(slots, sequence, 0, 2)
    for position in range(2, 12):
        sequence.token_ids.append(position)
        place(slots, sequence, position, position + 1)
    slots.release(sequence)

    assert slots.pool.hashes == [sequence.hashes[2]]


def test_a_checkpoint_whose_last_token_is_not_known_is_dropped() -> None:
    """The pass ran ahead, and the sequence has ended meanwhile."""
    slots, sequence = StateSlots(8, BLOCK_TOKENS), sequence_of(prompt_of(3))
    slots.take(sequence, 0)
    place(slots, sequence, 0, 3)
    place(slots, sequence, 3, 4)
    slots.release(sequence)

    assert slots.pool.hashes == []
    slots.pool.check_integrity([])


def test_what_failed_passes_leave_is_forgotten() -> None:
    """And every other checkpoint, because nobody knows which was read."""
    slots, sequence = StateSlots(8, BLOCK_TOKENS), sequence_of(prompt_of(9))
    slots.take(sequence, 0)
    place(slots, sequence, 0, 9)
    slots.forget([sequence])
    slots.release(sequence)

    assert slots.pool.hashes == []
    assert slots.pool.num_available == 8


def test_without_room_no_checkpoint_is_made_and_nobody_gets_a_slot() -> None:
    """Sequences come first."""
    slots, first, second = StateSlots(1, BLOCK_TOKENS), sequence_of(prompt_of(9)), sequence_of(prompt_of(5))
    assert slots.has_room(first, 0)
    slots.take(first, 0)

    assert place(slots, first, 0, 9).saves == ()
    assert not slots.has_room(second, 0)


def test_a_state_that_has_come_from_another_node_lets_go_of_what_it_began_from() -> None:
    """Its own slot has all of it: the checkpoint may be evicted for others."""
    slots, first, second = StateSlots(2, BLOCK_TOKENS), sequence_of(prompt_of(9)), sequence_of(prompt_of(9))
    slots.take(first, 0)
    place(slots, first, 0, 9)
    slots.release(first)
    slots.take(second, 2)
    assert slots.pool.num_available == 0

    slots.received(second)

    assert slots.pool.num_available == 1
    assert slots.slots_of(second) == [second.state.slot] if second.state else False
    slots.received(sequence_of(prompt_of(3)))  # has none: the model keeps no states


def test_what_nobody_may_take_over_leaves_no_checkpoint() -> None:
    """Neither of rounded KV nor of a request that bypasses caches."""
    slots, sequence = StateSlots(4, BLOCK_TOKENS), sequence_of(prompt_of(9))
    sequence.is_rounded = True
    slots.take(sequence, 0)

    assert place(slots, sequence, 0, 9).saves == ()
    slots.release(sequence)
    assert slots.pool.hashes == []
