"""The memory of one layer's K and V."""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from baton.engine.runners.base import LayerKv
from baton.engine.runners.mlx.positions import Reading, Slots
from baton.kv.layout import KvDtype, LayerSpec

MLX_DTYPES: dict[KvDtype, mx.Dtype] = {
    KvDtype.FLOAT32: mx.float32,
    KvDtype.FLOAT16: mx.float16,
    KvDtype.BFLOAT16: mx.bfloat16,
}
"""Dtypes in which a cache can be held."""


class LayerPool:
    """K and V of one layer for all blocks of the node.

    keys: [num_kv_heads, num_blocks * block_tokens, key_head_dim]; values likewise, with value_head_dim.

    Invariant: when a write is evaluated, nothing else refers to the arrays, so that MLX reuses their memory instead
    of copying the pool. Therefore what `read` returns must not outlive a pass of the model, and the runner evaluates
    the pools after every pass.
    """

    def __init__(self, spec: LayerSpec, num_blocks: int, block_tokens: int, dtype: mx.Dtype) -> None:
        num_slots = num_blocks * block_tokens
        self.keys = mx.zeros((spec.num_kv_heads, num_slots, spec.key_head_dim), dtype)
        self.values = mx.zeros((spec.num_kv_heads, num_slots, spec.value_head_dim), dtype)
        self._block_tokens = block_tokens
        self._head_rows = (mx.arange(spec.num_kv_heads) * num_blocks).astype(mx.int32)[None, :, None]
        mx.eval(self.keys, self.values, self._head_rows)

    @property
    def arrays(self) -> list[mx.array]:
        """Return what `mx.eval` must see."""
        return [self.keys, self.values]

    def write(self, slots: Slots, keys: mx.array, values: mx.array) -> None:
        """Write [num_kv_heads, num_tokens, head_dim] into slots, lazily; cast, lest the pool be widened."""
        index = slots if isinstance(slots, slice) else mx.array(slots)
        self.keys[:, index] = keys.astype(self.keys.dtype)
        self.values[:, index] = values.astype(self.values.dtype)

    def read(self, reading: Reading) -> tuple[mx.array, mx.array]:
        """Return K and V, each [num_rows, num_kv_heads, num_tokens, head_dim], lazily."""
        return self._read(self.keys, reading), self._read(self.values, reading)

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block into another, lazily."""
        first, second = (
            slice(block * self._block_tokens, (block + 1) * self._block_tokens) for block in (source, target)
        )
        self.keys[:, second] = self.keys[:, first]
        self.values[:, second] = self.values[:, first]

    def write_bytes(self, slots: Slots, kv: LayerKv) -> None:
        """Write K and V that are given as bytes, and wait for it."""
        self.write(slots, _from_bytes(kv.keys, self.keys), _from_bytes(kv.values, self.values))
        mx.eval(self.arrays)

    def read_bytes(self, slots: Slots) -> LayerKv:
        """Return a copy of K and V in slots."""
        index = slots if isinstance(slots, slice) else mx.array(slots)
        return to_layer_kv(self.keys[:, index], self.values[:, index])

    def _read(self, array: mx.array, reading: Reading) -> mx.array:
        if reading.slots is not None:
            return array[None, :, reading.slots]
        num_heads, _, head_dim = array.shape
        blocks = array.reshape(-1, self._block_tokens * head_dim)
        rows = blocks[self._head_rows + cast(mx.array, reading.blocks)[:, None, :]]
        return rows.reshape(rows.shape[0], num_heads, -1, head_dim)[:, :, : reading.num_tokens]


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


def _from_bytes(data: bytes | memoryview, like: mx.array) -> mx.array:
    num_heads, _, head_dim = like.shape
    words: npt.NDArray[np.generic] = np.frombuffer(data, dtype="<f4" if like.dtype == mx.float32 else "<u2")
    return mx.array(words.reshape(num_heads, -1, head_dim)).view(like.dtype)
