"""What the device knows of the rows that decode: fed by one transfer per launch, carried on by the steps themselves."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch

from baton.engine.runners.torch.static.rows import TableChanges
from baton.engine.runners.torch.upload import upload

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
    """The tensors that captured steps read and write.

    Attributes:
        fields: See `Field`: [num_fields, max_rows], int64. Steps write what the next one feeds.
        tables: Blocks of each row: [max_rows, max_blocks], int32.
        chosen: Token that the last step chose in each row, `NOT_FINITE` included: [max_rows], int64.
        history: Tokens chosen by each step of the launch: [max_steps, max_rows], int64.
        step_index: Steps of the launch that are done: [1], int64.
    """

    def __init__(
        self, *, max_rows: int, max_blocks: int, max_steps: int, idle_block: int, device: torch.device
    ) -> None:
        num_fields = Field.UNIFORMS + max_steps
        self.max_rows = max_rows
        self.fields = torch.zeros(num_fields, max_rows, dtype=torch.int64, device=device)
        self.tables = torch.full((max_rows, max_blocks), idle_block, dtype=torch.int32, device=device)
        self.chosen = torch.zeros(max_rows, dtype=torch.int64, device=device)
        self.history = torch.zeros(max_steps, max_rows, dtype=torch.int64, device=device)
        self.step_index = torch.zeros(1, dtype=torch.int64, device=device)
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
        self.history[:, :num_rows].index_copy_(0, self.step_index, chosen[None])
        self.fields[Field.SOURCE, :num_rows].copy_(torch.arange(num_rows, device=chosen.device))
        self.fields[Field.END, :num_rows].add_(1)
        self.step_index.add_(1)
