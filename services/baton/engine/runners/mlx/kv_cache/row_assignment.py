"""Which sequence has which row of a decode batch; on the host, pure.

A batch must be the rows from 0 on, because slicing copies nothing. So a sequence that joins takes a free row or the
next one, and where one left before the last row, the last one moves there: one sequence's K and V, never the batch's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from baton.engine.runners.base import Span


class AssignedRows(NamedTuple):
    """Rows of the sequences of a batch."""

    rows: list[int]
    """Row of each span: a permutation of 0 to n - 1."""
    entering: list[int]
    """Indices of the spans whose row must be filled from the blocks, for [0, start)."""
    opened: list[int]
    """Blocks that the batch is the first to write for their sequence; whoever else holds them holds the past."""


class _RowHolder:
    """A sequence whose K and V of positions [0, end) a row has; its blocks hold the same."""

    def __init__(self, blocks: set[int], end: int, tail: int) -> None:
        self.blocks, self.end = blocks, end
        self.tail = tail


class RowAssignment:
    """Remembers what each row holds.

    A sequence is known by its tail, the block of its last position: a row is given up when anybody else writes into one
    of its blocks (`forget`). So a row found by the tail, with as many positions as the span expects, has what the
    span's blocks have; also where the sequence that had it is gone.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._holders: list[_RowHolder | None] = []
        self._row_of: dict[int, int] = {}

    def assign(self, spans: Sequence[Span]) -> AssignedRows:
        """Give every sequence of a batch, of one token each, a row below their number, and count it as computed."""
        found = [self._take_row(span) for span in spans]
        free = iter(sorted(set(range(len(spans))).difference(row for row in found if row is not None)))
        rows = [row if row is not None and row < len(spans) else next(free) for row in found]
        entering = [index for index, row in enumerate(rows) if row != found[index]]
        holders: list[_RowHolder | None] = [None] * len(spans)
        opened = []
        for index, (row, span) in enumerate(zip(rows, spans, strict=True)):
            place = span.start // self._block_tokens
            tail = span.block_table[place]
            holder = self._holders[row] if row == found[index] else None
            if holder is None:
                holder = _RowHolder(set(span.block_table[: place + 1]), span.end, tail)
                opened.append(tail)
            elif holder.tail != tail:
                holder.blocks.add(tail)
                opened.append(tail)
            holder.end, holder.tail = span.end, tail
            holders[row] = holder
        self._holders = holders
        self._row_of = {holder.tail: row for row, holder in enumerate(holders) if holder is not None}
        return AssignedRows(rows, entering, opened)

    def forget(self, blocks: Iterable[int]) -> None:
        """Give up the rows of sequences that have one of these blocks, which somebody else writes."""
        written = list(blocks)
        for row, holder in enumerate(self._holders):
            if holder is not None and not holder.blocks.isdisjoint(written):
                self._holders[row] = None
                del self._row_of[holder.tail]

    def has(self, span: Span) -> bool:
        """Return whether a span's sequence has a row as it is before the span."""
        return self._row_with(span) is not None

    def _take_row(self, span: Span) -> int | None:
        """Return the row of a span's sequence, which nobody else may find from now on."""
        row = self._row_with(span)
        holder = None if row is None else self._holders[row]
        if holder is not None:
            del self._row_of[holder.tail]
        return row

    def _row_with(self, span: Span) -> int | None:
        if span.start == 0:
            return None
        # Not the block that the next position goes to: one that is opened now may have been a tail just before.
        row = self._row_of.get(span.block_table[(span.start - 1) // self._block_tokens])
        holder = None if row is None else self._holders[row]
        if row is None or holder is None or holder.end != span.start:
            return None
        return row
