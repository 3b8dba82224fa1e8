"""Several spans of any length in one pass of the model: their tokens lie in one row, one span after the other.

Projections and MLP see all tokens at once; attention runs span by span. All spans of a layer write before any reads, so
that one may begin with blocks that another writes, and no write has to copy what a read refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from baton.engine.runners.base import LayerSink, Span
from baton.engine.runners.mlx.kv_cache.cells import QUANTIZED_BITS, Kv
from baton.engine.runners.mlx.kv_cache.pool import LayerPool, to_layer_kv
from baton.engine.runners.mlx.kv_cache.positions import Extent, Mask, Slots, VisibleKeys, read_one, slots_of


@dataclass(frozen=True, slots=True)
class Part:
    """Positions of one span in a packed row.

    Interval table: elements [begin, end) of the row are positions [offset, offset + end - begin) of the sequence.
    """

    begin: int
    end: int
    offset: int
    readings: dict[int, VisibleKeys]
    """What attention reads, by the layer's window in tokens (0: all)."""
    sink: LayerSink | None = None
    """Where to hand K and V of each layer."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How spans lie in a packed row, and what of it the last layer computes besides K and V."""

    parts: tuple[Part, ...]
    slots: Slots
    """Where K and V of all tokens go."""
    wanted: tuple[Part, ...]
    """Positions whose logits are wanted, packed likewise; spans that want none are left out."""
    chosen: tuple[slice, ...]
    """Where those lie in the whole row."""


def pack(spans: Sequence[Span], windows: Iterable[int], block_tokens: int) -> Packing:
    """Lay spans, each of one token or more, one after the other."""
    windows = set(windows)
    parts, wanted, chosen = list[Part](), list[Part](), list[slice]()
    slots = []
    begin = num_wanted = 0
    for span in spans:
        end = begin + span.end - span.start
        parts.append(_part(span, span.start, begin, windows, block_tokens, span.layer_sink))
        slots.append(_as_indices(slots_of(span.block_table, span.start, span.end, block_tokens)))
        if span.num_logits:
            wanted.append(_part(span, span.first_logits_position, num_wanted, windows, block_tokens, None))
            chosen.append(slice(end - span.num_logits, end))
            num_wanted += span.num_logits
        begin = end
    return Packing(tuple(parts), np.concatenate(slots), tuple(wanted), tuple(chosen))


def _part(span: Span, start: int, begin: int, windows: set[int], block_tokens: int, sink: LayerSink | None) -> Part:
    extent = Extent(start, span.end, span.block_table)
    readings = {window: read_one(extent, window, block_tokens) for window in windows}
    return Part(begin, begin + span.end - start, start, readings, sink)


def _as_indices(slots: Slots) -> npt.NDArray[np.int32]:
    return np.arange(slots.start, slots.stop, dtype=np.int32) if isinstance(slots, slice) else slots


class PackedCache:
    """What `FusedAttention` takes for a packed row: writes for all spans, reads for one after the other.

    `is_last`: the row has the wanted positions alone, whose K and V lie in the pool. `window_tokens` 0: all.
    """

    def __init__(self, pool: LayerPool, packing: Packing, layer: int, window_tokens: int, *, is_last: bool) -> None:
        self.parts = packing.wanted if is_last else packing.parts
        self._pool = pool
        self._slots = None if is_last else packing.slots
        self._layer, self._window_tokens = layer, window_tokens
        if pool.keys.group_size is not None:  # mlx-lm's attention takes it for the sign of a quantised cache
            self.bits = QUANTIZED_BITS
            self.group_size = pool.keys.group_size

    def write(self, keys: mx.array, values: mx.array) -> None:
        """Write K and V [1, num_kv_heads, num_tokens, head_dim] of all spans, and hand them to the sinks."""
        if self._slots is None:
            return
        for part in self.parts:
            if part.sink is not None:
                of_part = slice(part.begin, part.end)
                part.sink(self._layer, to_layer_kv(keys[0, :, of_part], values[0, :, of_part]))
        self._pool.write(self._slots, keys[0], values[0])

    def read(self, part: Part) -> tuple[Kv, Kv]:
        """Return K and V of all positions that a span reads."""
        return self._pool.read(part.readings[self._window_tokens])

    def mask(self, part: Part) -> Mask:
        """Return what a span may see of them."""
        return part.readings[self._window_tokens].mask
