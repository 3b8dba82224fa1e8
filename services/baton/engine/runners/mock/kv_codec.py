"""The wire's number formats for the mock's rows, which are no numbers: as many bytes, and nothing lost.

A packed row repeats the state of its cache row over elements and scales, so any wrong byte still shows in the text.
"""

from __future__ import annotations

import numpy as np

from baton.engine.runners.mock.state import mix
from baton.kv.kv_format import KvDtype, Packed, row_bytes

_WORD_BYTES = 8

Rows = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


class MockCodec:
    """See `baton.kv.kv_format.WireCodec`."""

    def pack(self, data: bytes | memoryview, cache: KvDtype, wire: KvDtype, head_dim: int) -> Packed:
        """Return rows of `head_dim` elements, given in `cache`, in `wire`."""
        rows = np.frombuffer(data, np.uint8).reshape(-1, head_dim * cache.num_bytes)
        packed = _tiled(_words_of(rows), row_bytes(wire, cache, head_dim))
        num_element_bytes = head_dim * wire.num_bytes
        return Packed(packed[:, :num_element_bytes].tobytes(), packed[:, num_element_bytes:].tobytes())

    def unpack(self, packed: Packed, cache: KvDtype, wire: KvDtype, head_dim: int) -> bytes:
        """Return rows of `head_dim` elements, given in `wire`, in `cache`."""
        elements = np.frombuffer(packed.data, np.uint8).reshape(-1, head_dim * wire.num_bytes)
        scales = np.frombuffer(packed.scales, np.uint8).reshape(len(elements), -1)
        return _tiled(_words_of(np.concatenate([elements, scales], axis=1)), head_dim * cache.num_bytes).tobytes()


def _words_of(rows: Rows) -> Rows:
    """Return the word that each row repeats, [num_rows, 8], or one nobody sent; raise ValueError for short rows."""
    if rows.shape[1] < _WORD_BYTES:
        raise ValueError(f"a row of {rows.shape[1]} bytes does not hold the state of a mock, which has {_WORD_BYTES}")
    words = rows[:, :_WORD_BYTES].copy()
    is_sound = (rows == _tiled(words, rows.shape[1])).all(axis=1)
    if not is_sound.all():
        broken = rows[~is_sound].astype(np.uint64)
        digest = mix(broken @ (2 * np.arange(rows.shape[1], dtype=np.uint64) + 1))
        words[~is_sound] = digest.view(np.uint8).reshape(-1, _WORD_BYTES)
    return words


def _tiled(words: Rows, num_bytes: int) -> Rows:
    """Return each word repeated over a row of that many bytes."""
    return words[:, np.arange(num_bytes) % _WORD_BYTES]
