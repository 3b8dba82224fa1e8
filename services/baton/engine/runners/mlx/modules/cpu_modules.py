"""Modules that stand in for MLX's own on a CPU, where its fast kernels are chains of small operations.

On a CPU `mx.fast.rms_norm` runs eight operations and `mx.fast.rope` twenty, each handed to another thread; a decode
step of thirty layers spends a tenth of its time on that. These run three and one, and compute the very same.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn

_TRIED_POSITIONS = (1, 4095)
_MAX_ERROR = 1e-5
_MAX_TABLES = 64
"""Spans of one pass whose tables are kept."""


class ShortRmsNorm(nn.Module):  # type: ignore[misc] # mlx has no types for it
    """Root-mean-square normalisation, in float32 whatever the input is."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight = norm.weight
        self._eps = mx.array(norm.eps, mx.float32)
        self._share = mx.array(1.0 / norm.weight.shape[0], mx.float32)
        mx.eval(self._eps, self._share)

    def __call__(self, hidden: mx.array) -> mx.array:
        """Return [..., size] normalised along the last axis."""
        normalised: mx.array = _normalised(hidden, self.weight, self._share, self._eps)
        return normalised


class _Table(NamedTuple):
    """Cosines and sines of some positions."""

    offset: int | mx.array
    cosines: mx.array
    sines: mx.array


class RotationTable:
    """Cosines and sines of a pass's positions, computed by its first layer and read by all.

    `rope` is mlx-lm's module, which rotates pairs of elements that are half a head apart.
    """

    def __init__(self, rope: Any, head_dim: int) -> None:
        self._rope = rope
        self._basis = mx.concatenate([mx.ones(head_dim // 2), mx.zeros(head_dim // 2)])
        mx.eval(self._basis)
        self._tables: dict[tuple[int, int, int], _Table] = {}

    def at(self, offset: int | mx.array, num_rows: int, num_tokens: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        """Return cosines [num_rows, 1, num_tokens, 1, half] and signed sines [num_rows, 1, num_tokens, 2, half].

        Args:
            offset: Position of the first token; an array, [num_rows], is known again by its identity.
            num_rows: Rows of the pass, or 1 where all have the same positions.
            num_tokens: Of each row.
            dtype: Of what is rotated.
        """
        sign = (id(offset) if isinstance(offset, mx.array) else offset, num_rows, num_tokens)
        table = self._tables.get(sign)
        if table is None or (isinstance(offset, mx.array) and table.offset is not offset):
            unit = mx.broadcast_to(self._basis.astype(dtype), (num_rows, 1, num_tokens, self._basis.shape[0]))
            cosines, sines = mx.split(self._rope(unit, offset=offset), 2, axis=-1)
            if len(self._tables) == _MAX_TABLES:
                self._tables.clear()
            table = _Table(offset, cosines[..., None, :], mx.stack([-sines, sines], axis=-2))
            self._tables[sign] = table
        return table.cosines, table.sines


class SharedRope(nn.Module):  # type: ignore[misc]
    """Rotary position embedding from a table that layers share."""

    def __init__(self, table: RotationTable) -> None:
        super().__init__()
        self._table = table

    def __call__(self, heads: mx.array, offset: int | mx.array = 0) -> mx.array:
        """Return heads [num_rows, num_heads, num_tokens, head_dim] rotated."""
        num_rows, num_heads, num_tokens, head_dim = heads.shape
        rows_of_table = num_rows if isinstance(offset, mx.array) else 1
        cosines, sines = self._table.at(offset, rows_of_table, num_tokens, heads.dtype)
        pairs = heads.reshape(num_rows, num_heads, num_tokens, 2, head_dim // 2)
        rotated: mx.array = _rotated(pairs, pairs[..., ::-1, :], cosines, sines)
        return rotated.reshape(heads.shape)


def suit_cpu(model: Any, head_dim: int) -> None:
    """Replace the modules of a model of mlx-lm that a CPU computes faster so; ropes where trying proves it right."""
    for module in model.modules():
        for name, child in list(module.items()):
            if type(child) is nn.RMSNorm:
                setattr(module, name, ShortRmsNorm(child))
    known: dict[bytes, Any] = {}
    for layer in model.model.layers:
        rope: Any = getattr(layer.self_attn, "rope", None)
        if rope is None:
            continue
        sign = type(rope).__name__.encode() + _trial(rope, head_dim)
        if sign not in known:
            shared = SharedRope(RotationTable(rope, head_dim))
            known[sign] = shared if _is_right(shared, rope, head_dim) else rope
        layer.self_attn.rope = known[sign]


def _trial(rope: Any, head_dim: int) -> bytes:
    """Return what tells ropes apart: known heads, rotated to some positions."""
    heads = mx.broadcast_to(mx.arange(1, head_dim + 1, dtype=mx.float32), (len(_TRIED_POSITIONS), 1, 1, head_dim))
    rotated = mx.contiguous(rope(heads, offset=mx.array(_TRIED_POSITIONS)))
    return bytes(memoryview(rotated))  # type: ignore[arg-type] # an array gives its buffer


def _is_right(candidate: SharedRope, rope: Any, head_dim: int) -> bool:
    heads = mx.random.normal((len(_TRIED_POSITIONS), 3, 2, head_dim), key=mx.random.key(0))
    offsets = mx.array(_TRIED_POSITIONS)
    error = mx.abs(candidate(heads, offset=offsets) - rope(heads, offset=offsets)).max().item()
    return isinstance(error, float) and error <= _MAX_ERROR


@partial(mx.compile, shapeless=True)
def _normalised(hidden: mx.array, weight: mx.array, share: mx.array, eps: mx.array) -> mx.array:
    wide = hidden.astype(mx.float32)
    scale = mx.rsqrt((wide * wide).sum(-1, keepdims=True) * share + eps)
    return (wide * scale).astype(hidden.dtype) * weight


@partial(mx.compile, shapeless=True)
def _rotated(pairs: mx.array, swapped: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    return pairs * cosines + swapped * sines
