"""Which row of the device's buffers decodes which sequence, and what the device lacks of its blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TableChanges(NamedTuple):
    """Entries of the device's block tables that must change."""

    indices: list[int]
    """Flat indices of entries, row by row."""
    blocks: list[int]
    """What they become."""


class RowTables:
    """Knows what the block tables on the device hold, and keeps a sequence in its row from pass to pass.

    A sequence is recognised by the list object that holds its blocks, but what the device lacks is found by comparing
    blocks: a list that was emptied and filled again, or another one, costs more entries and is never wrong.

    Invariant: the device holds what is known of each row. The caller says what it has sent: a transfer that fails
    leaves the device as it was.

    Args:
        max_rows: Rows of the tables.
        max_blocks: Entries of a row.
        idle_block: Block that rows without a sequence write to; nobody reads it.
        idle_entries: First entries of a row that hold it while the row has no sequence.
    """

    def __init__(self, *, max_rows: int, max_blocks: int, idle_block: int, idle_entries: int) -> None:
        self._max_blocks = max_blocks
        self._idle = [idle_block] * idle_entries
        self._known = [self._idle] * max_rows
        self._unsent: dict[int, list[int]] = {}
        self._owners: list[Sequence[int] | None] = [None] * max_rows
        self._row_of: dict[int, int] = {}

    def place(self, tables: Sequence[Sequence[int]], num_rows: int) -> list[int]:
        """Give each sequence a row below `num_rows`, its own where it can be.

        Args:
            tables: Blocks of each sequence, as many as rows at most.
            num_rows: Rows of the pass.
        """
        rows = self._rows_of(tables, num_rows)
        for row in set(range(num_rows)).difference(rows):
            self._release(row)
        for row, table in zip(rows, tables, strict=True):
            self._owners[row] = table
            self._row_of[id(table)] = row
        return rows

    def changes(self, rows: list[int], tables: Sequence[Sequence[int]], num_rows: int) -> TableChanges:
        """Return what must change so that each row's table is its sequence's, and of idle rows the idle block.

        Nothing of it counts as known before `sent`.

        Args:
            rows: Row of each sequence.
            tables: Its blocks; none has more than a row's entries.
            num_rows: Rows of the pass.
        """
        changes = TableChanges([], [])
        self._unsent = {}
        for row, table in zip(rows, tables, strict=True):
            known = self._known[row]
            if known != table:
                self._change(row, known, list(table), changes)
        for row in set(range(num_rows)).difference(rows):
            if self._known[row] is not self._idle:
                self._change(row, [], self._idle, changes)
        return changes

    def sent(self) -> None:
        """Take note that the device holds what was last said to change."""
        for row, table in self._unsent.items():
            self._known[row] = table

    def _rows_of(self, tables: Sequence[Sequence[int]], num_rows: int) -> list[int]:
        rows, taken = list[int](), set[int]()
        for table in tables:
            row = self._row_of.get(id(table), num_rows)
            is_own = row < num_rows and self._owners[row] is table and row not in taken
            rows.append(row if is_own else -1)
            taken.add(rows[-1])
        free = iter(row for row in range(num_rows) if row not in taken)
        for index, row in enumerate(rows):
            if row < 0:
                rows[index] = next(free)
                self._release(rows[index])
        return rows

    def _release(self, row: int) -> None:
        owner = self._owners[row]
        if owner is not None and self._row_of.get(id(owner)) == row:
            del self._row_of[id(owner)]
        self._owners[row] = None

    def _change(self, row: int, known: list[int], table: list[int], changes: TableChanges) -> None:
        """Add the entries from the first one on that differs."""
        assert len(table) <= self._max_blocks, f"{len(table)} blocks do not fit {self._max_blocks} entries"
        first = len(known) if table[: len(known)] == known else 0
        changes.indices.extend(range(row * self._max_blocks + first, row * self._max_blocks + len(table)))
        changes.blocks.extend(table[first:])
        self._unsent[row] = table
