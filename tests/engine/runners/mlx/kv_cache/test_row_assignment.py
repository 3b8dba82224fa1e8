"""Which sequence has which row of a decode batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("mlx.core")

from baton.engine.runners.base import Span
from baton.engine.runners.mlx.kv_cache.row_assignment import RowAssignment

BLOCK_TOKENS = 4


def step(start: int, *blocks: int) -> Span:
    """Return the span of a sequence's newest token."""
    return Span([1], start, blocks, needs_logits=True)


def test_a_sequence_keeps_its_row_while_it_grows() -> None:
    """Step after step, into the next block too, nothing is copied; the block that it enters is told."""
    assignment = RowAssignment(BLOCK_TOKENS)
    assignment.assign([step(2, 7), step(3, 8)])

    second = assignment.assign([step(3, 7), step(4, 8, 9)])

    assert (second.rows, second.entering, second.opened) == ([0, 1], [], [9])


def test_who_joins_takes_the_next_row() -> None:
    """Those who are there stay where they are, in whatever order the batch names them."""
    assignment = RowAssignment(BLOCK_TOKENS)
    assignment.assign([step(2, 7), step(3, 8)])

    joined = assignment.assign([step(4, 8, 9), step(1, 5), step(3, 7)])

    assert (joined.rows, joined.entering) == ([1, 2, 0], [1])


def test_when_one_leaves_the_last_row_alone_moves() -> None:
    """Of five sequences the second leaves: the fifth takes its row, three stay."""
    assignment = RowAssignment(BLOCK_TOKENS)
    assignment.assign([step(1, block) for block in range(5)])

    left = assignment.assign([step(2, block) for block in (0, 2, 3, 4)])

    assert (left.rows, left.entering) == ([0, 2, 3, 1], [3])


@pytest.mark.parametrize("written", [7, 9])
def test_a_row_is_given_up_when_somebody_else_writes_one_of_its_blocks(written: int) -> None:
    """A later sequence with the same blocks and length does not find the past."""
    assignment = RowAssignment(BLOCK_TOKENS)
    assignment.assign([step(5, 7, 9)])

    assignment.forget([written])

    assert not assignment.has(step(6, 7, 9))


def test_a_sequence_that_lost_positions_is_copied_again() -> None:
    """After a preemption it has another length than its row."""
    assignment = RowAssignment(BLOCK_TOKENS)
    assignment.assign([step(2, 7)])

    again = assignment.assign([step(5, 3, 7)])

    assert again.entering == [0]


def test_two_sequences_with_the_same_full_blocks_do_not_share_a_row() -> None:
    """The row belongs to one of them; the other is copied."""
    assignment = RowAssignment(BLOCK_TOKENS)
    assignment.assign([step(3, 7)])

    both = assignment.assign([step(4, 7, 8), step(4, 7, 9)])

    assert sorted(both.rows) == [0, 1]
    assert len(both.entering) == 1


def test_who_opens_the_block_of_one_that_has_gone_does_not_take_its_row() -> None:
    """A request ends with a full block, which becomes another's next: its length is the same, its past is not."""
    assignment = RowAssignment(BLOCK_TOKENS)
    assignment.assign([step(3, 7), step(3, 8)])

    opening = assignment.assign([step(4, 8, 7)])

    assert opening.rows == [0]
    assert opening.entering == [0], "the row holds the past of whoever had block 7"


@dataclass(eq=False)
class Decoding:
    """A sequence, and what its positions hold."""

    table: list[int] = field(default_factory=list)
    past: list[float] = field(default_factory=list)

    def span(self) -> Span:
        """Return the span of its next position."""
        return step(len(self.past), *self.table)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), block_tokens=st.sampled_from((1, 2, 4)), max_sequences=st.integers(1, 8))
def test_a_row_that_is_found_holds_the_past_of_who_finds_it(seed: int, block_tokens: int, max_sequences: int) -> None:
    """Sequences come with a past of their own, go, and pause; a block that is given back is the next one given."""
    random, assignment = Random(seed), RowAssignment(block_tokens)
    free, running = list(range(512)), list[Decoding]()
    rows: list[list[float]] = []
    for _ in range(60):
        for gone in [one for one in running if random.random() < 0.15]:
            running.remove(gone)
            free.extend(gone.table)
        batch = [one for one in running if random.random() < 0.9]
        for one in batch:
            if len(one.past) == len(one.table) * block_tokens:
                one.table.append(free.pop())
        if len(running) < max_sequences and random.random() < 0.6:
            joining = Decoding(past=[random.random() for _ in range(random.randint(1, 3 * block_tokens))])
            num_blocks = len(joining.past) // block_tokens + 1
            joining.table = [free.pop() for _ in range(num_blocks)]
            assignment.forget(joining.table)
            running.append(joining)
            batch.append(joining)

        assigned = assignment.assign([one.span() for one in batch])

        held: list[list[float]] = [[] for _ in batch]
        for index, (row, one) in enumerate(zip(assigned.rows, batch, strict=True)):
            held[row] = list(one.past) if index in assigned.entering else rows[row]
            assert held[row] == one.past, f"row {row} holds another past"
            one.past.append(random.random())
            held[row].append(one.past[-1])
        rows = held if batch else rows
