"""Decoding rows as the model's layers see them."""

from __future__ import annotations

import torch

from baton.engine.runners.base import Span
from baton.engine.runners.torch.batch import Segment
from baton.engine.runners.torch.hand_over import HandOver
from baton.engine.runners.torch.lora import AdaptedRows
from baton.engine.runners.torch.paged.queries import PagedQueries
from baton.engine.runners.torch.paged.tiles import Tiles, tiles_for
from baton.engine.runners.torch.pool import KvPool
from baton.engine.runners.torch.static.buffers import DecodeBuffers, Field


class DecodeBatch:
    """One token of each of the first rows of the buffers; every tensor follows from them on the device.

    It stands where a `PackedBatch` stands, but holds no spans: nothing of it is handed out by layer, and no row has an
    adapter.

    Attributes:
        pool: Where K and V live.
        num_rows: Rows, idle ones included.
    """

    is_paged = True
    hand_over: HandOver | None = None
    has_sinks: bool = False
    spans: tuple[Span, ...] = ()
    segments: tuple[Segment, ...] = ()
    last_segments: tuple[Segment, ...] = ()
    adapted: tuple[AdaptedRows, ...] = ()
    last_adapted: tuple[AdaptedRows, ...] = ()

    def __init__(self, buffers: DecodeBuffers, pool: KvPool, num_rows: int) -> None:
        self.pool = pool
        self.num_rows = num_rows
        self._buffers = buffers
        device = buffers.fields.device
        self._rows = torch.arange(num_rows + 1, dtype=torch.int32, device=device)
        self._zeros = torch.zeros(num_rows, dtype=torch.int32, device=device)
        self._begin()

    @property
    def num_logits(self) -> int:
        """Return the number of rows: all want logits."""
        return self.num_rows

    def token_ids(self) -> torch.Tensor:
        """Return the tokens: [1, num_rows]. Called first in a step."""
        self._begin()
        return self._buffers.begin(self.num_rows)[None]

    def positions(self) -> torch.Tensor:
        """Return their positions: [1, num_rows]."""
        return self._positions[None]

    def slots(self) -> torch.Tensor:
        """Return where in the pool the positions lie: [num_rows]."""
        return self._slots

    def last_rows(self) -> torch.Tensor:
        """Return all rows: [num_rows]."""
        return self._rows[:-1].long()

    def paged(
        self,
        segments: tuple[Segment, ...],  # noqa: ARG002 - all rows
        group: int,
        head_dim: int,
        dtype: torch.dtype,
    ) -> PagedQueries:
        """Return the description of the rows' queries."""
        tiles: Tiles = tiles_for(dtype, group=group, head_dim=head_dim, max_queries=1)
        tables = self._buffers.tables[: self.num_rows]
        max_end = tables.shape[1] * self.pool.block_tokens
        return PagedQueries(tables, self._ends, self._rows, self._rows[:-1], self._zeros, tiles, max_end)

    def _begin(self) -> None:
        """Derive what all layers need."""
        ends = self._buffers.fields[Field.END, : self.num_rows]
        self._positions = ends - 1
        self._ends = ends.to(torch.int32)
        block_index = torch.div(self._positions, self.pool.block_tokens, rounding_mode="floor")
        blocks = self._buffers.tables[: self.num_rows].gather(1, block_index[:, None])[:, 0].long()
        self._slots = blocks * self.pool.block_tokens + self._positions % self.pool.block_tokens
