"""What mlx-lm's attention takes for a KV cache (`offset`, `update_and_fetch`), over a layer's pool."""

from __future__ import annotations

import mlx.core as mx

from baton.engine.runners.base import LayerSink
from baton.engine.runners.mlx.kv_cache.cells import QUANTIZED_BITS, Kv
from baton.engine.runners.mlx.kv_cache.pool import LayerPool, to_layer_kv
from baton.engine.runners.mlx.kv_cache.positions import Slots, VisibleKeys
from baton.engine.runners.mlx.kv_cache.rows import LayerRows


class _LayerCache:
    """What every cache tells: the position of the first token, and how K and V are kept.

    mlx-lm's attention takes `bits` and `group_size` for the sign of a quantised cache: absent where it is not.
    """

    def __init__(self, pool: LayerPool, offset: int | mx.array, reading: VisibleKeys) -> None:
        self.offset, self._pool = offset, pool
        self._reading = reading
        if pool.keys.group_size is not None:
            self.bits = QUANTIZED_BITS
            self.group_size = pool.keys.group_size


class WritingCache(_LayerCache):
    """Writes the K and V that a layer computed, hands them to a sink, and returns what the layer attends to."""

    def __init__(
        self,
        pool: LayerPool,
        offset: int | mx.array,
        slots: Slots,
        reading: VisibleKeys,
        *,
        layer: int = 0,
        sink: LayerSink | None = None,
    ) -> None:
        super().__init__(pool, offset, reading)
        self._slots, self._layer = slots, layer
        self._sink = sink

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Kv, Kv]:
        """Take K and V [num_rows, num_kv_heads, num_tokens, head_dim], and return those of all positions to read."""
        keys, values = _rows_as_tokens(keys), _rows_as_tokens(values)
        if self._sink is not None:
            self._sink(self._layer, to_layer_kv(keys, values))
        self._pool.write(self._slots, keys, values)
        return self._pool.read(self._reading)


class RowCache(_LayerCache):
    """Writes the K and V of a step into rows and blocks, and returns the rows."""

    def __init__(
        self, pool: LayerPool, offset: int | mx.array, slots: Slots, reading: VisibleKeys, *, rows: LayerRows
    ) -> None:
        super().__init__(pool, offset, reading)
        self._slots, self._rows = slots, rows

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Kv, Kv]:
        """Take K and V [num_rows, num_kv_heads, 1, head_dim], and return those of all positions to read."""
        rows = self._rows
        key_parts, value_parts = rows.keys.encode(keys[:, :, 0]), rows.values.encode(values[:, :, 0])
        self._pool.write_encoded(
            self._slots, [part.swapaxes(0, 1) for part in key_parts], [part.swapaxes(0, 1) for part in value_parts]
        )
        rows.write_encoded(key_parts, value_parts)
        return rows.read(keys.shape[0], self._reading)


class ReadingCache(_LayerCache):
    """Returns what lies in the pool; the K and V that the layer recomputed are the same and never evaluated."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Kv, Kv]:
        """Return the K and V of all positions to read."""
        del keys, values
        return self._pool.read(self._reading)


def _rows_as_tokens(array: mx.array) -> mx.array:
    """Return [num_kv_heads, num_rows * num_tokens, head_dim]."""
    num_rows, num_heads, _, head_dim = array.shape
    return array[0] if num_rows == 1 else array.transpose(1, 0, 2, 3).reshape(num_heads, -1, head_dim)
