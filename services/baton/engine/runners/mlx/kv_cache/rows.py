"""K and V of decode batches in rows, one sequence in each: attention reads them in place, without a gather.

The blocks of the pool stay the truth: what a step writes goes into both, so that a row may be given up at any time,
and prefixes are shared, moved out and taken over by blocks as ever.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from baton.engine.runners.base import Span
from baton.engine.runners.mlx.kv_cache.cells import Cells, Kv
from baton.engine.runners.mlx.kv_cache.pool import LayerPool
from baton.engine.runners.mlx.kv_cache.positions import Extent, VisibleKeys, read_one, read_rows
from baton.engine.runners.mlx.kv_cache.row_assignment import RowAssignment
from baton.kv.kv_format import LayerSpec

_STEP_TOKENS = 64
"""Rows are as long as a multiple of it."""


class LayerRows:
    """K and V of one layer: [num_rows, num_kv_heads, num_tokens, head_dim] each."""

    def __init__(self, spec: LayerSpec, dtype: mx.Dtype, *, is_quantized: bool) -> None:
        shape = (0, spec.num_kv_heads, 0)
        self.keys = Cells(shape, spec.key_head_dim, dtype, is_quantized=is_quantized)
        self.values = Cells(shape, spec.value_head_dim, dtype, is_quantized=is_quantized)
        self._ends: int | mx.array = 0

    @property
    def arrays(self) -> list[mx.array]:
        """Return what `mx.eval` must see."""
        return [*self.keys.parts, *self.values.parts]

    @property
    def num_heads(self) -> int:
        """Return the heads of a row."""
        return self.keys.shape[1]

    def aim(self, ends: int | mx.array) -> None:
        """Say where the step's K and V go.

        A position, if it is the same in all rows; else [num_rows * num_kv_heads] in the flattened axes, int32.
        """
        self._ends = ends

    def write_encoded(self, keys: list[mx.array], values: list[mx.array]) -> None:
        """Write [num_rows, num_kv_heads, head_dim], encoded, where `aim` said."""
        for cells, parts in ((self.keys, keys), (self.values, values)):
            if isinstance(self._ends, int):
                index = (slice(0, parts[0].shape[0]), slice(None), slice(self._ends, self._ends + 1))
                cells.put(index, [part[:, :, None] for part in parts])
            else:
                flat = [part.reshape(-1, part.shape[-1]) for part in parts]
                cells.put(self._ends, flat, shape=(math.prod(cells.shape),))

    def read(self, num_rows: int, reading: VisibleKeys) -> tuple[Kv, Kv]:
        """Return K and V of the first rows, each [num_rows, num_kv_heads, num_tokens, head_dim]: views, lazily."""
        index = (slice(0, num_rows), slice(None), reading.slots)
        return self.keys.get(index), self.values.get(index)

    def fill(self, row: int, pool: LayerPool, reading: VisibleKeys | None) -> None:
        """Copy a sequence from its blocks into a row, lazily; None: it has no positions yet.

        Zeros follow it, lest a NaN of the row's past pass the mask (0 * NaN is NaN).
        """
        index = (slice(row, row + 1),)
        for cells, source in ((self.keys, pool.keys), (self.values, pool.values)):
            if reading is None:
                cells.put(index, [mx.zeros_like(part[index]) for part in cells.parts])
            else:
                room = [(0, 0), (0, 0), (0, cells.shape[2] - reading.num_tokens), (0, 0)]
                cells.put(index, [mx.pad(part, room) for part in pool.parts(source, reading)])

    def resize(self, num_rows: int, num_tokens: int) -> None:
        """Change how many rows there are and how long they are, keep what fits."""
        for cells in (self.keys, self.values):
            cells.resize((num_rows, self.num_heads, num_tokens))


class Taken(NamedTuple):
    """A batch whose sequences have rows."""

    order: list[int]
    readings: dict[int, VisibleKeys]
    """What attention reads of every row, by the layer's window in tokens (0: all)."""
    opened: list[int]
    """Blocks that the batch is the first to write for their sequence."""


class RowSet:
    """Rows for one batch after the other, as many and as long as it needs."""

    def __init__(self, layers: Mapping[int, LayerRows], block_tokens: int) -> None:
        self.layers = layers
        self.assignment = RowAssignment(block_tokens)
        self._block_tokens = block_tokens
        self._num_rows = self._num_tokens = 0

    @property
    def num_positions(self) -> int:
        """Return the positions of all rows together."""
        return self._num_rows * self._num_tokens

    def num_positions_for(self, spans: Sequence[Span]) -> int:
        """Return the positions that it will have, to take a batch."""
        num_rows, num_tokens = self._shape_for(spans)
        return num_rows * num_tokens

    def take(self, spans: Sequence[Span], pools: Mapping[int, LayerPool], windows: Iterable[int]) -> Taken:
        """Give rows to spans of one token; who enters is copied from the pools."""
        self._resize(*self._shape_for(spans))
        assigned = self.assignment.assign(spans)
        for index in assigned.entering:
            self._fill(assigned.rows[index], spans[index], pools)
        order = sorted(range(len(spans)), key=assigned.rows.__getitem__)
        starts = np.asarray([spans[index].start for index in order], dtype=np.int32)
        self._aim(starts)
        return Taken(order, {window: read_rows(starts, window) for window in windows}, assigned.opened)

    def _shape_for(self, spans: Sequence[Span]) -> tuple[int, int]:
        """Return rows and their length: enough, but not so few or short that the next steps would ask for more."""
        num_rows, num_tokens = len(spans), max(span.end for span in spans)
        if self._num_rows // 4 < num_rows <= self._num_rows:
            num_rows = self._num_rows
        elif num_rows > self._num_rows:
            num_rows = max(num_rows, self._num_rows * 3 // 2)
        if self._num_tokens // 4 <= num_tokens <= self._num_tokens:
            return num_rows, self._num_tokens
        return num_rows, -(-num_tokens * 17 // 16 // _STEP_TOKENS) * _STEP_TOKENS

    def _resize(self, num_rows: int, num_tokens: int) -> None:
        if (num_rows, num_tokens) != (self._num_rows, self._num_tokens):
            for layer in self.layers.values():
                layer.resize(num_rows, num_tokens)
            self._num_rows, self._num_tokens = num_rows, num_tokens

    def _fill(self, row: int, span: Span, pools: Mapping[int, LayerPool]) -> None:
        reading = None
        if span.start:
            reading = read_one(Extent(span.start - 1, span.start, span.block_table), 0, self._block_tokens)
        for index, layer in self.layers.items():
            layer.fill(row, pools[index], reading)
        # Or the step's write would copy the pools that this reads.
        mx.eval([layer.arrays for layer in self.layers.values()])

    def _aim(self, starts: npt.NDArray[np.int32]) -> None:
        if starts.min() == starts.max():  # a slice costs less than a scatter
            for layer in self.layers.values():
                layer.aim(int(starts[0]))
            return
        for num_heads in {layer.num_heads for layer in self.layers.values()}:
            firsts = np.arange(len(starts) * num_heads, dtype=np.int32) * self._num_tokens
            cell_indices = mx.array(firsts + np.repeat(starts, num_heads))
            for layer in self.layers.values():
                if layer.num_heads == num_heads:
                    layer.aim(cell_indices)
