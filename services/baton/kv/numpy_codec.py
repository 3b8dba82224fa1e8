"""The wire's number formats in NumPy: what they mean, and how nodes without torch make and read them.

Packs about 1 GB of a 16-bit cache per CPU-second and unpacks 4 (tests/kv/test_codecs.py prints the figures).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from baton.kv.kv_format import AFFINE_GROUP, KvDtype, Packed

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Buffer = bytes | memoryview
AnyArray = np.ndarray[tuple[int, ...], np.dtype[Any]]

_TILE_ELEMENTS = 1 << 16
"""Elements converted at once: what the steps hand to each other stays in the processor's cache."""
_INT8_MAX = 127.0
_UINT8_MAX = 255.0
_FP8_MAX = 448.0
"""Largest number of E4M3 (OCP OFP8, section 5.2: no infinities, one NaN per sign)."""
_FP8_SMALLEST_NORMAL = 2.0**-6
_BFLOAT16_NAN = 0x7FC0
_TINY = np.float32(1e-30)
"""Stands for the largest element of a row of zeros."""


class NumpyCodec:
    """See `baton.kv.kv_format.WireCodec`. A row that holds NaN or infinity unpacks into numbers that are not finite."""

    def pack(self, data: Buffer, cache: KvDtype, wire: KvDtype, head_dim: int) -> Packed:
        """Return rows of `head_dim` elements, given in `cache`, in `wire`."""
        rows = np.frombuffer(data, _STORAGE[cache]).reshape(-1, head_dim)
        packed = np.empty(rows.shape, _STORAGE[wire])
        scales = _empty_scales(len(rows), cache, wire, head_dim)
        for start, stop in _tiles(len(rows), head_dim):
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite stays so, and is found there
                _pack(_to_float(rows[start:stop], cache), packed[start:stop], scales[start:stop], cache, wire)
        return Packed(_bytes_of(packed), _bytes_of(scales))

    def unpack(self, packed: Packed, cache: KvDtype, wire: KvDtype, head_dim: int) -> Buffer:
        """Return rows of `head_dim` elements, given in `wire`, in `cache`."""
        source = np.frombuffer(packed.data, _STORAGE[wire]).reshape(-1, head_dim)
        scales = np.frombuffer(packed.scales, _scale_storage(cache, wire)).reshape(len(source), -1)
        rows = np.empty(source.shape, _STORAGE[cache])
        for start, stop in _tiles(len(rows), head_dim):
            with np.errstate(invalid="ignore", over="ignore"):
                _store(_unpack(source[start:stop], scales[start:stop], cache, wire), rows[start:stop], cache)
        return _bytes_of(rows)


_STORAGE: dict[KvDtype, str] = {
    KvDtype.FLOAT32: "<f4",
    KvDtype.FLOAT16: "<f2",
    KvDtype.BFLOAT16: "<u2",
    KvDtype.INT8: "i1",
    KvDtype.AFFINE8: "u1",
    KvDtype.FP8: "u1",
}
"""NumPy has no bfloat16 and no FP8: their bits are kept as integers."""


def _pack(rows: Floats, packed: AnyArray, scales: AnyArray, cache: KvDtype, wire: KvDtype) -> None:
    if wire is KvDtype.AFFINE8:
        _pack_affine(rows, packed, scales, cache)
    elif wire in (KvDtype.INT8, KvDtype.FP8):
        limit = _INT8_MAX if wire is KvDtype.INT8 else _FP8_MAX
        largest = np.maximum(rows.max(axis=1), -rows.min(axis=1))[:, None]
        np.multiply(largest, np.float32(1 / limit), out=scales)
        scaled = rows * (np.float32(limit) / np.maximum(largest, _TINY))
        packed[:] = np.rint(scaled, out=scaled) if wire is KvDtype.INT8 else _to_fp8(scaled)
    else:
        _store(rows, packed, wire)


def _pack_affine(rows: Floats, packed: AnyArray, scales: AnyArray, cache: KvDtype) -> None:
    """Scale and bias are rounded to the cache's format first, so that what is rounded away there is not lost twice."""
    groups = rows.reshape(len(rows), -1, AFFINE_GROUP)
    low, high = groups.min(axis=2), groups.max(axis=2)
    num_groups = low.shape[1]
    _store((high - low) * np.float32(1 / _UINT8_MAX), scales[:, :num_groups], cache)
    _store(low, scales[:, num_groups:], cache)
    step, bias = _to_float(scales[:, :num_groups], cache), _to_float(scales[:, num_groups:], cache)
    scaled = (groups - bias[:, :, None]) * (np.float32(1) / np.maximum(step, _TINY))[:, :, None]
    packed[:] = np.clip(np.rint(scaled, out=scaled), 0, _UINT8_MAX, out=scaled).reshape(rows.shape)


def _unpack(source: AnyArray, scales: AnyArray, cache: KvDtype, wire: KvDtype) -> Floats:
    if wire is KvDtype.INT8:
        return np.multiply(source, scales, dtype=np.float32)
    if wire is KvDtype.FP8:
        return E4M3[source] * scales
    if wire is not KvDtype.AFFINE8:
        return _to_float(source, wire)
    num_groups = scales.shape[1] // 2
    groups = source.reshape(len(source), num_groups, AFFINE_GROUP)
    step, bias = _to_float(scales[:, :num_groups], cache), _to_float(scales[:, num_groups:], cache)
    rows = np.multiply(groups, step[:, :, None], dtype=np.float32)
    rows += bias[:, :, None]
    return rows.reshape(source.shape)


def _to_float(rows: AnyArray, dtype: KvDtype) -> Floats:
    if dtype is KvDtype.BFLOAT16:
        return np.left_shift(rows, 16, dtype=np.uint32).view(np.float32)
    return rows.astype(np.float32, copy=False)


def _store(rows: Floats, target: AnyArray, dtype: KvDtype) -> None:
    """Write rows in a floating format, rounded to nearest, ties to even."""
    if dtype is KvDtype.BFLOAT16:
        bits = np.ascontiguousarray(rows).view(np.uint32)
        target[:] = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        is_nan = np.isnan(rows)
        if is_nan.any():  # rounded up, its bits may become those of a zero
            target[is_nan] = _BFLOAT16_NAN
    else:
        target[:] = rows


def _to_fp8(rows: Floats) -> AnyArray:
    """Return the E4M3 codes of numbers of at most 448, rounded to nearest, ties to even."""
    bits = rows.view(np.uint32)
    magnitude = np.abs(rows)
    size = bits & np.uint32(0x7FFFFFFF)
    rounded = (size + np.uint32(0x7FFFF) + ((size >> np.uint32(20)) & np.uint32(1))) >> np.uint32(20)
    normal = rounded - np.uint32((127 - 7) << 3)  # the exponent's bias is 7, not 127; three bits of mantissa stay
    subnormal = np.rint(magnitude * np.float32(2.0**9)).astype(np.uint32)
    code = np.where(magnitude < _FP8_SMALLEST_NORMAL, subnormal, np.minimum(normal, np.uint32(0x7F)))
    signed: AnyArray = code | (bits >> np.uint32(24) & np.uint32(0x80))
    return signed.astype(np.uint8)


def _e4m3() -> Floats:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, (codes & 7).astype(np.float32)
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes & 0x80, -size, size).astype(np.float32)


E4M3 = _e4m3()
"""The number that each of the 256 codes of 4 bits of exponent and 3 of mantissa stands for; there is no infinity."""


def _empty_scales(num_rows: int, cache: KvDtype, wire: KvDtype, head_dim: int) -> AnyArray:
    num_scales = 2 * (head_dim // AFFINE_GROUP) if wire is KvDtype.AFFINE8 else int(wire.num_bytes == 1)
    return np.empty((num_rows, num_scales), _scale_storage(cache, wire))


def _scale_storage(cache: KvDtype, wire: KvDtype) -> str:
    return _STORAGE[cache] if wire is KvDtype.AFFINE8 else "<f4"


def _tiles(num_rows: int, head_dim: int) -> list[tuple[int, int]]:
    step = max(1, _TILE_ELEMENTS // head_dim)
    return [(start, min(start + step, num_rows)) for start in range(0, num_rows, step)]


def _bytes_of(array: AnyArray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def split_blocks(part: bytes | memoryview, num_heads: int, num_blocks: int) -> list[memoryview]:
    """Return the blocks, 0 or more, of [heads, blocks * tokens, head dim], each [heads, tokens, head dim], copied.

    Without the interpreter's lock, unlike `tobytes`.
    """
    array = np.frombuffer(part, dtype=np.uint8).reshape(max(1, num_heads), max(1, num_blocks), -1)
    return [array[:, block].copy().reshape(-1).data for block in range(num_blocks)]


def join_blocks(parts: Iterable[bytes | memoryview], num_heads: int) -> memoryview:
    """Return blocks, 1 or more, as one [heads, blocks * tokens, head dim]."""
    arrays = [np.frombuffer(part, np.uint8).reshape(max(1, num_heads), -1) for part in parts]
    return _bytes_of(np.concatenate(arrays, axis=1))
