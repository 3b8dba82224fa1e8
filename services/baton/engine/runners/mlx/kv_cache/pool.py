"""The memory of one layer's K and V."""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from baton.engine.runners.base import LayerKv
from baton.engine.runners.mlx.kv_cache.cells import Cells, Kv, as_kv
from baton.engine.runners.mlx.kv_cache.positions import Slots, VisibleKeys
from baton.kv.kv_format import KvDtype, LayerSpec

MLX_DTYPES: dict[KvDtype, mx.Dtype] = {
    KvDtype.FLOAT32: mx.float32,
    KvDtype.FLOAT16: mx.float16,
    KvDtype.BFLOAT16: mx.bfloat16,
}
"""Dtypes in which a cache can be held."""


class LayerPool:
    """K and V of one layer for all blocks of the node.

    keys: [num_kv_heads, num_blocks * block_tokens, key_head_dim]; values likewise, with value_head_dim. Invariant: that
    of `Cells`. What `read` returns must not outlive a pass of the model, and the runner waits for what is under way
    before the next write is.
    """

    def __init__(
        self, spec: LayerSpec, num_blocks: int, block_tokens: int, dtype: mx.Dtype, *, is_quantized: bool = False
    ) -> None:
        shape = (spec.num_kv_heads, num_blocks * block_tokens)
        self.keys = Cells(shape, spec.key_head_dim, dtype, is_quantized=is_quantized)
        self.values = Cells(shape, spec.value_head_dim, dtype, is_quantized=is_quantized)
        self._block_tokens = block_tokens
        self._is_on_gpu = mx.metal.is_available()
        self._head_rows = (mx.arange(spec.num_kv_heads) * num_blocks).astype(mx.int32)[None, :, None]
        mx.eval(self.arrays, self._head_rows)

    @property
    def arrays(self) -> list[mx.array]:
        """Return what `mx.eval` must see."""
        return [*self.keys.parts, *self.values.parts]

    def write(self, slots: Slots | mx.array, keys: mx.array, values: mx.array) -> None:
        """Write [num_kv_heads, num_tokens, head_dim] into slots, lazily."""
        self.write_encoded(slots, self.keys.encode(keys), self.values.encode(values))

    def write_encoded(self, slots: Slots | mx.array, keys: list[mx.array], values: list[mx.array]) -> None:
        """Write K and V that `Cells.encode` returned."""
        index = mx.array(slots) if isinstance(slots, np.ndarray) else slots
        for cells, parts in ((self.keys, keys), (self.values, values)):
            if self._is_on_gpu or isinstance(index, slice):
                cells.put((slice(None), index), parts)
            else:  # on a CPU a third of a scatter's time
                cells.put_along(1, index, parts)

    def read(self, reading: VisibleKeys) -> tuple[Kv, Kv]:
        """Return K and V, each [num_rows, num_kv_heads, num_tokens, head_dim], lazily."""
        keys, values = self.parts(self.keys, reading), self.parts(self.values, reading)
        if reading.written is not None:
            values = [mx.where(reading.written, part, mx.array(0, part.dtype)) for part in values]
            if self.keys.head_dim != self.values.head_dim:  # latents are keys and values
                keys = [mx.where(reading.written, part, mx.array(0, part.dtype)) for part in keys]
        return as_kv(keys), as_kv(values)

    def parts(self, cells: Cells, reading: VisibleKeys) -> list[mx.array]:
        """Return the arrays of K or V, each [num_rows, num_kv_heads, num_tokens, width], lazily."""
        if reading.slots is not None:
            return [part[None, :, reading.slots] for part in cells.parts]
        rows = self._head_rows + cast(mx.array, reading.blocks)[:, None, :]
        return [self._gather(part, rows)[:, :, : reading.num_tokens] for part in cells.parts]

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block into another, lazily."""
        first, second = (
            (slice(None), slice(block * self._block_tokens, (block + 1) * self._block_tokens))
            for block in (source, target)
        )
        for cells in (self.keys, self.values):
            cells.put(second, [part[first] for part in cells.parts])

    def write_bytes(self, slots: Slots, kv: LayerKv) -> None:
        """Write K and V that are given as bytes, lazily."""
        self.write(slots, _from_bytes(kv.keys, self.keys), _from_bytes(kv.values, self.values))

    def read_bytes(self, slots: Slots) -> LayerKv:
        """Return a copy of K and V in slots."""
        index = (slice(None), slots if isinstance(slots, slice) else mx.array(slots))
        kv = to_layer_kv(self.keys.decode(self.keys.get(index)), self.values.decode(self.values.get(index)))
        num_heads, num_slots = self.keys.shape
        if isinstance(slots, slice) and (num_heads == 1 or slots.stop - slots.start == num_slots):
            return LayerKv(bytes(kv.keys), bytes(kv.values))  # the pool's own memory: the next write would copy it all
        return kv

    def _gather(self, part: mx.array, rows: mx.array) -> mx.array:
        """Return whole blocks, [num_rows, num_kv_heads, num_tokens, width]."""
        blocks = part.reshape(-1, self._block_tokens * part.shape[-1])[rows]
        return blocks.reshape(*rows.shape[:2], -1, part.shape[-1])


def to_layer_kv(keys: mx.array, values: mx.array) -> LayerKv:
    """Compute K and V, each [num_kv_heads, num_tokens, head_dim], and return their memory.

    MLX does not write into the memory while the result lives, so the result is the caller's to keep.
    """
    keys, values = _as_words(keys), _as_words(values)
    mx.eval(keys, values)
    return LayerKv(_memory(keys), _memory(values))


def _as_words(array: mx.array) -> mx.array:
    """Return a C-ordered array of a dtype that NumPy knows."""
    contiguous = mx.contiguous(array)
    return contiguous.view(mx.uint16) if contiguous.dtype == mx.bfloat16 else contiguous


def _memory(array: mx.array) -> memoryview:
    words: npt.NDArray[np.generic] = np.array(array, copy=False)
    return words.data.cast("B").toreadonly()


def _from_bytes(data: bytes | memoryview, like: Cells) -> mx.array:
    words: npt.NDArray[np.generic] = np.frombuffer(data, dtype="<f4" if like.dtype == mx.float32 else "<u2")
    return mx.array(words.reshape(like.shape[0], -1, like.head_dim)).view(like.dtype)
