"""What K and V may be on the wire: sizes of every number format, and which of them a cache can travel in.

A row is the vector of one KV head at one position. Of a packed row there are its elements, and its scales, which
travel apart (protos/baton/v1/kv.proto, KvDtype).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from baton.errors import InvalidFieldError
from baton.kv.layout import KvDtype, KvLayout, LayerSpec, WireFormat

AFFINE_GROUP = 64
"""Consecutive elements of a row that share scale and bias in KvDtype.AFFINE8, as in MLX."""
_SCALE_BYTES = 4
_FLOATS = (KvDtype.FLOAT32, KvDtype.BFLOAT16, KvDtype.FLOAT16)


class Packed(NamedTuple):
    """Rows in a wire's number format, C order, little-endian."""

    data: bytes | memoryview
    """Elements, row after row."""
    scales: bytes | memoryview
    """What they are multiplied by, row after row; empty where the format has none."""


class WireCodec(Protocol):
    """Turns rows of a cache into rows of a wire and back. Safe from any thread."""

    def pack(self, data: bytes | memoryview, cache: KvDtype, wire: KvDtype, head_dim: int) -> Packed:
        """Return rows of `head_dim` elements, given in `cache`, in `wire`."""

    def unpack(self, packed: Packed, cache: KvDtype, wire: KvDtype, head_dim: int) -> bytes | memoryview:
        """Return rows of `head_dim` elements, given in `wire`, in `cache`."""


def scale_bytes(wire: KvDtype, cache: KvDtype, head_dim: int) -> int:
    """Return the bytes of one row's scales."""
    if wire is KvDtype.AFFINE8:
        return 2 * cache.num_bytes * (head_dim // AFFINE_GROUP)
    return _SCALE_BYTES if wire in (KvDtype.INT8, KvDtype.FP8) else 0


def row_bytes(wire: KvDtype, cache: KvDtype, head_dim: int) -> int:
    """Return the bytes of one row, scales included."""
    return wire.num_bytes * head_dim + scale_bytes(wire, cache, head_dim)


class TokenBytes(NamedTuple):
    """Bytes of one position over all layers, scales included."""

    keys: int
    """Of K."""
    values: int
    """Of V."""


def token_bytes(layout: KvLayout, wire: WireFormat) -> TokenBytes:
    """Return what one position takes on the wire."""
    return TokenBytes(
        sum(spec.num_kv_heads * row_bytes(wire.keys, layout.dtype, spec.key_head_dim) for spec in layout.layers),
        sum(spec.num_kv_heads * row_bytes(wire.values, layout.dtype, spec.value_head_dim) for spec in layout.layers),
    )


def wire_dtypes(layout: KvLayout) -> tuple[KvDtype, ...]:
    """Return the formats in which this cache can travel; the first is its own, which loses nothing."""
    narrower = (KvDtype.BFLOAT16, KvDtype.FLOAT16, KvDtype.INT8, KvDtype.AFFINE8, KvDtype.FP8)
    return (layout.dtype, *(dtype for dtype in narrower if not _problem(layout, dtype, layout.dtype)))


def sendable_dtypes(layout: KvLayout) -> tuple[KvDtype, ...]:
    """Return the formats in which this cache can be sent: those of `wire_dtypes`, then others of its size.

    A receiver whose cache has one of the latter wants it; among caches of one format it would save nothing.
    """
    known = wire_dtypes(layout)
    return (*known, *(dtype for dtype in _FLOATS if dtype.num_bytes == layout.dtype.num_bytes and dtype not in known))


def holds_exactly(cache: KvDtype, dtype: KvDtype) -> bool:
    """Return whether a cache can hold every number of a floating format."""
    return cache is dtype or (cache is KvDtype.FLOAT32 and dtype in _FLOATS)


def is_kept_exactly(sender: KvDtype, wire: WireFormat, receiver: KvDtype) -> bool:
    """Return whether a cache ends up with the very numbers of the one that sent: no step on the way rounds them."""
    return all(holds_exactly(dtype, sender) and holds_exactly(receiver, dtype) for dtype in wire)


def check_wire(layout: KvLayout, wire: WireFormat, receiver: KvDtype | None = None) -> None:
    """Check that a cache can travel in a format.

    Args:
        layout: The cache.
        wire: The format.
        receiver: Format of the cache that it travels to; None: the same.

    Raises:
        InvalidFieldError: Naming wire_dtype or value_wire_dtype, and what stands against it.
    """
    for field, dtype in (("wire_dtype", wire.keys), ("value_wire_dtype", wire.values)):
        if dtype is not layout.dtype and (problem := _problem(layout, dtype, receiver or layout.dtype)):
            raise InvalidFieldError(field, problem)


def _problem(layout: KvLayout, dtype: KvDtype, receiver: KvDtype) -> str:
    """Return why a cache cannot travel in a format other than its own; empty if it can."""
    if dtype is receiver is not layout.dtype and dtype.num_bytes <= layout.dtype.num_bytes:
        return ""
    if dtype is KvDtype.AFFINE8 and receiver is not layout.dtype:
        return f"affine8 has scales of the cache's format: one is {layout.dtype.value}, the other {receiver.value}"
    if dtype.num_bytes >= layout.dtype.num_bytes:
        return f"a cache of {layout.dtype.value} does not travel as {dtype.value}, which is no smaller"
    if dtype is KvDtype.AFFINE8 and (dims := _odd_dims(layout.layers)):
        return f"affine8 shares scales between {AFFINE_GROUP} elements: a head of {dims[0]} is no multiple of it"
    return ""


def _odd_dims(layers: Sequence[LayerSpec]) -> list[int]:
    return [dim for spec in layers for dim in (spec.key_head_dim, spec.value_head_dim) if dim % AFFINE_GROUP]
