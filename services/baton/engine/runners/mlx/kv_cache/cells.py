"""Memory for K or V: arrays whose last axis is the head's elements, as they are or quantised to 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

QUANTIZED_BITS = 8
"""Bits of a quantised element."""
_WORD_BITS = 32
_GROUP_SIZES = (64, 32)


Quantized = tuple[mx.array, mx.array, mx.array]
"""Elements in MLX's affine format, as mlx-lm's attention takes them: scale * integer + bias.

Packed integers, [..., head_dim / 4], uint32; scales and biases, [..., head_dim / group size].
"""

Kv = mx.array | Quantized
"""K or V: [..., head_dim]."""


def group_size_of(head_dim: int) -> int | None:
    """Return the elements that share a scale; None where a head cannot be split into groups that MLX knows."""
    return next((size for size in _GROUP_SIZES if head_dim % size == 0), None)


class Cells:
    """K or V of many positions, written piece by piece and in place.

    Invariant: when a write is evaluated, nothing but this object refers to the arrays, so that MLX reuses their memory
    instead of copying it. Therefore what `get` returns must be on its way before the next write.

    `shape`: all axes but the last one. `head_dim`: elements of the last one. `dtype`: what `put` takes is cast to it,
    lest the arrays be widened. `is_quantized`: whether elements are kept in 8 bits; then `head_dim` has a group size.
    """

    def __init__(self, shape: Sequence[int], head_dim: int, dtype: mx.Dtype, *, is_quantized: bool) -> None:
        self.shape = tuple(shape)
        self.head_dim, self.dtype = head_dim, dtype
        self.group_size = group_size_of(head_dim) if is_quantized else None
        widths = [(head_dim, dtype)]
        if self.group_size is not None:
            groups = head_dim // self.group_size
            widths = [(head_dim * QUANTIZED_BITS // _WORD_BITS, mx.uint32), (groups, dtype), (groups, dtype)]
        self.parts = [mx.zeros((*self.shape, width), part_dtype) for width, part_dtype in widths]

    @property
    def num_bytes(self) -> int:
        """Return the size of the arrays."""
        return sum(part.nbytes for part in self.parts)

    def encode(self, elements: mx.array) -> list[mx.array]:
        """Return elements [..., head_dim] as the arrays hold them."""
        elements = elements.astype(self.dtype)
        if self.group_size is None:
            return [elements]
        return list(mx.quantize(elements, group_size=self.group_size, bits=QUANTIZED_BITS))

    def decode(self, kv: Kv) -> mx.array:
        """Return what `get` returned as plain elements."""
        if isinstance(kv, mx.array):
            return kv
        elements: mx.array = mx.dequantize(*kv, group_size=self.group_size, bits=QUANTIZED_BITS).astype(self.dtype)
        return elements

    def put(self, index: object, parts: Sequence[mx.array], *, shape: Sequence[int] | None = None) -> None:
        """Write encoded elements, lazily, where `index` points in the axes of `shape` (default: the own ones)."""
        for number, part in enumerate(parts):
            viewed = self.parts[number].reshape(*(shape or self.shape), part.shape[-1])
            viewed[index] = part
            self.parts[number] = viewed.reshape(*self.shape, part.shape[-1])

    def put_along(self, axis: int, indices: mx.array, parts: Sequence[mx.array]) -> None:
        """Write encoded elements, lazily, at indices of one of the own axes, int32, and everywhere in the others."""
        spread = indices.reshape([-1 if number == axis else 1 for number in range(len(self.shape) + 1)])
        for number, part in enumerate(parts):
            self.parts[number] = mx.put_along_axis(self.parts[number], spread, part, axis=axis)

    def get(self, index: object, *, shape: Sequence[int] | None = None) -> Kv:
        """Return what `index` points to in the axes of `shape`, lazily; slices are views."""
        return as_kv([part.reshape(*(shape or self.shape), part.shape[-1])[index] for part in self.parts])

    def resize(self, shape: Sequence[int]) -> None:
        """Change the axes, keep what fits, and fill with zeros; copies, one array after the other."""
        common = tuple(slice(0, min(old, new)) for old, new in zip(self.shape, shape, strict=True))
        for number, part in enumerate(self.parts):
            grown = mx.zeros((*shape, part.shape[-1]), part.dtype)
            grown[common] = part[common]
            self.parts[number] = grown
            del part
            mx.eval(grown)
        self.shape = tuple(shape)


def as_kv(parts: Sequence[mx.array]) -> Kv:
    """Return the arrays of K or V as attention takes them."""
    return parts[0] if len(parts) == 1 else cast(Quantized, tuple(parts))
