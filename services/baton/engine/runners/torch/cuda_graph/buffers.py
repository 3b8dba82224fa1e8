"""What the device knows of the rows that decode, which row decodes which sequence, and what the device lacks of it.

One transfer per launch feeds the buffers; the steps themselves carry them on.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch

from baton.engine.runners.torch.ops.pool import upload

Fields = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""What a launch says of each row: [num_fields, max_rows], int64."""


class Field(IntEnum):
    """Lines of the fields; from `UNIFORMS` on, one line for each step of a launch."""

    TOKEN = 0
    """Token to feed, where no row is followed."""
    SOURCE = 1
    """Row whose last chosen token is fed; -1: none."""
    END = 2
    """Position of the fed token, plus 1."""
    TEMPERATURE = 3
    """Bits of a float64; 0: the most probable token."""
    UNIFORMS = 4
    """Bits of float64s: the random number of each step's token."""


class DecodeBuffers:
    """The tensors that captured steps read and write; a graph knows addresses alone, so they live as long as it.

    `fields`: see `Field`: [num_fields, max_rows], int64. Steps write what the next one feeds. `tables`: blocks of each
    row: [max_rows, max_blocks], int32. `chosen`: token that the last step chose in each row, `NOT_FINITE` included:
    [max_rows], int64. `step_index`: steps of the launch that are done: [1], int64. `rows`: [max_rows + 1] from 0 on,
    `zeros`: [max_rows], int32.
    """

    def __init__(
        self, *, max_rows: int, max_blocks: int, max_steps: int, idle_block: int, device: torch.device
    ) -> None:
        self.max_rows = max_rows
        self.fields = torch.zeros(Field.UNIFORMS + max_steps, max_rows, dtype=torch.int64, device=device)
        self.tables = torch.full((max_rows, max_blocks), idle_block, dtype=torch.int32, device=device)
        self.chosen = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self.step_index = torch.zeros(1, dtype=torch.int64, device=device)
        self.rows = torch.arange(max_rows + 1, dtype=torch.int32, device=device)
        self.zeros = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._device = device
        self.load(self.idle_fields(1), TableChanges([], []))

    def idle_fields(self, num_steps: int) -> Fields:
        """Return fields of rows without sequences: they feed token 0 at position 0 of the idle block."""
        fields: Fields = np.zeros((Field.UNIFORMS + num_steps, self.max_rows), dtype=np.int64)
        fields[Field.SOURCE] = -1
        fields[Field.END] = 1
        return fields

    def load(self, fields: Fields, changes: TableChanges) -> None:
        """Send what a launch says of the rows, and what has changed in their tables, in one transfer."""
        num_entries = len(changes.indices)
        parts = [fields.ravel(), np.array(changes.indices, np.int64), np.array(changes.blocks, np.int64)]
        sent = upload(torch.from_numpy(np.concatenate(parts)), self._device, torch.int64)
        self.fields[: len(fields)].copy_(sent[: fields.size].view(fields.shape))
        self.step_index.zero_()
        if num_entries:
            indices, blocks = sent[fields.size :].view(2, num_entries)
            self.tables.view(-1).index_copy_(0, indices, blocks.to(torch.int32))

    def begin(self, num_rows: int) -> torch.Tensor:
        """Return the tokens to feed to the first rows: [num_rows], int64."""
        source = self.fields[Field.SOURCE, :num_rows]
        followed = self.chosen[source.clamp(min=0)].clamp(min=0)  # a row that is not finite counts as 0
        return torch.where(source >= 0, followed, self.fields[Field.TOKEN, :num_rows])

    def draws(self, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the temperatures of the first rows and the random numbers of the step: [num_rows], float64 each."""
        uniforms = self.fields[Field.UNIFORMS :, :num_rows].index_select(0, self.step_index)[0]
        temperatures = self.fields[Field.TEMPERATURE, :num_rows]
        return temperatures.view(torch.float64), uniforms.view(torch.float64)

    def advance(self, chosen: torch.Tensor) -> None:
        """End a step: every row feeds its chosen token at the next position."""
        num_rows = len(chosen)
        self.chosen[:num_rows].copy_(chosen)
        self.fields[Field.SOURCE, :num_rows].copy_(torch.arange(num_rows, device=chosen.device))
        self.fields[Field.END, :num_rows].add_(1)
        self.step_index.add_(1)


class TableChanges(NamedTuple):
    """Entries of the device's block tables that must change."""

    indices: list[int]
    """Flat indices of entries, row by row."""
    blocks: list[int]
    """What they become."""


class RowTables:
    """Knows what the block tables on the device hold, and keeps a sequence in its row from pass to pass.

    A sequence is recognised by the list object that holds its blocks, but what the device lacks is found by comparing
    blocks: a list that was emptied and filled again, or another one, costs more entries and is never wrong. Invariant:
    the device holds what is known of each row. The caller says what it has sent: a transfer that fails leaves the
    device as it was.

    Rows without a sequence write to `idle_block`, which their first `idle_entries` hold; nobody reads it.
    """

    def __init__(self, *, max_rows: int, max_blocks: int, idle_block: int, idle_entries: int) -> None:
        self._max_blocks = max_blocks
        self._idle = [idle_block] * idle_entries
        self._known = [self._idle] * max_rows
        self._unsent: dict[int, list[int]] = {}
        self._owners: list[Sequence[int] | None] = [None] * max_rows
        self._row_of: dict[int, int] = {}

    def place(self, tables: Sequence[Sequence[int]], num_rows: int) -> list[int]:
        """Give each sequence, one for each of `tables`, a row below `num_rows`, its own where it can be."""
        rows = self._rows_of(tables, num_rows)
        for row in set(range(num_rows)).difference(rows):
            self._release(row)
        for row, table in zip(rows, tables, strict=True):
            self._owners[row] = table
            self._row_of[id(table)] = row
        return rows

    def changes(self, rows: list[int], tables: Sequence[Sequence[int]], num_rows: int) -> TableChanges:
        """Return what must change so that each row's table is its sequence's, and of idle rows the idle block.

        Nothing of it counts as known before `sent`. No table has more than a row's entries.
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
