"""A KV stream: its frames, in which order they come, and how far a prompt's KV has come, layer by layer.

Frames are packed from a cache's own number format into the stream's, and back. They are received into memory that is
used again and again, because fresh memory costs a page fault per 4 KiB.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from baton.kv.kv_format import KvDtype, KvLayout, Packed, WireCodec

_SMALLEST_BYTES = 64 << 10
"""Less is given from the allocator, which keeps small memory itself."""
_CLASSES_PER_DOUBLING = 4


@dataclass(frozen=True, slots=True)
class KvFrame:
    """K and V of consecutive layers and positions (protos/baton/v1/kv.proto, KvFrame)."""

    layer_begin: int
    """First layer."""
    num_layers: int
    """Layers, 1 or more."""
    token_begin: int
    """First position."""
    num_tokens: int
    """Positions, 1 or more."""
    keys: bytes | memoryview
    """[num_layers, num_kv_heads, num_tokens, key_head_dim], C order, little-endian."""
    values: bytes | memoryview
    """[num_layers, num_kv_heads, num_tokens, value_head_dim], C order, little-endian."""
    ready_seconds: float = 0.0
    """Sender's clock: from the arrival of the request until K and V were there to send."""
    key_scales: bytes | memoryview = b""
    """Scales of the keys' rows, where the wire's number format has them."""
    value_scales: bytes | memoryview = b""
    """Scales of the values' rows."""

    @property
    def num_bytes(self) -> int:
        """Return the payload size."""
        return len(self.keys) + len(self.values) + len(self.key_scales) + len(self.value_scales)


def frame_groups(layout: KvLayout, layers_per_frame: int) -> Sequence[range]:
    """Return the layers of each frame of a pass: groups of equal layers, never mixing head counts or dimensions."""
    groups: list[range] = []
    for layer, spec in enumerate(layout.layers):
        last = groups[-1] if groups else None
        is_alike = last is not None and spec.is_shaped_like(layout.layers[last.start])
        if last is not None and is_alike and len(last) < layers_per_frame:
            groups[-1] = range(last.start, layer + 1)
        else:
            groups.append(range(layer, layer + 1))
    return groups


@dataclass(frozen=True, slots=True)
class KvProgress:
    """Positions whose KV is there.

    Interval table: layer `l` has [0, next_tokens[l]) and lacks [next_tokens[l], num_tokens).
    """

    next_tokens: tuple[int, ...]
    """First position that each layer lacks."""
    num_tokens: int
    """Positions of the prompt, 1 or more."""

    @classmethod
    def begin(cls, layout: KvLayout, token_begin: int, num_tokens: int) -> Self:
        """Return the progress of a prompt whose positions from `token_begin` are missing in every layer."""
        return cls((token_begin,) * layout.num_layers, num_tokens)

    @property
    def complete_tokens(self) -> int:
        """Return the positions that every layer has."""
        return min(self.next_tokens)

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is missing."""
        return self.complete_tokens == self.num_tokens

    @property
    def is_even(self) -> bool:
        """Return whether all layers have the same positions."""
        return self.complete_tokens == max(self.next_tokens)

    def missing_bytes(self, layout: KvLayout, dtype: KvDtype | None = None) -> int:
        """Return the payload that is missing, in `dtype` (the cache's if None), without scales."""
        num_bytes = (dtype or layout.dtype).num_bytes
        return sum(
            (self.num_tokens - next_token) * spec.num_token_elements * num_bytes
            for spec, next_token in zip(layout.layers, self.next_tokens, strict=True)
        )


def pack_frame(codec: WireCodec, layout: KvLayout, frame: KvFrame) -> KvFrame:
    """Return a frame of the cache in the format of the stream."""
    spec, wire = layout.layers[frame.layer_begin], layout.wire_format
    keys = _pack(codec, frame.keys, layout.dtype, wire.keys, spec.key_head_dim)
    values = _pack(codec, frame.values, layout.dtype, wire.values, spec.value_head_dim)
    return replace(frame, keys=keys.data, values=values.data, key_scales=keys.scales, value_scales=values.scales)


def unpack_frame(codec: WireCodec, layout: KvLayout, frame: KvFrame) -> KvFrame:
    """Return a frame of the stream, whose sizes have been checked, in the cache's own format."""
    spec, wire = layout.layers[frame.layer_begin], layout.wire_format
    keys, values = Packed(frame.keys, frame.key_scales), Packed(frame.values, frame.value_scales)
    return replace(
        frame,
        keys=_unpack(codec, keys, layout.dtype, wire.keys, spec.key_head_dim),
        values=_unpack(codec, values, layout.dtype, wire.values, spec.value_head_dim),
        key_scales=b"",
        value_scales=b"",
    )


def _pack(codec: WireCodec, data: bytes | memoryview, cache: KvDtype, wire: KvDtype, head_dim: int) -> Packed:
    return Packed(data, b"") if wire is cache else codec.pack(data, cache, wire, head_dim)


def _unpack(codec: WireCodec, packed: Packed, cache: KvDtype, wire: KvDtype, head_dim: int) -> bytes | memoryview:
    return packed.data if wire is cache else codec.unpack(packed, cache, wire, head_dim)


MOST_IDLE_BYTES = 256 << 20
"""Memory between two frames that is worth keeping, however much there is."""


class StagingPool:
    """Gives memory to one reader after another. Safe from any thread.

    Invariant: memory is given again only after every view of it has gone, whoever held it and however it ended: the
    pool is told by the death of the object that all views keep alive. So nobody gives anything back, and nothing late
    can write into, or read from, a frame that is not its own.

    Args:
        max_idle_bytes: Memory kept while nobody uses it.
    """

    def __init__(self, max_idle_bytes: int = MOST_IDLE_BYTES) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._idle: dict[int, deque[np.ndarray[tuple[int], np.dtype[np.uint8]]]] = {}

    def give(self, num_bytes: int) -> memoryview:
        """Return writable memory with any content."""
        if num_bytes < _SMALLEST_BYTES:
            return memoryview(bytearray(num_bytes))
        size = _class_bytes(num_bytes)
        try:
            memory = self._idle[size].pop()
        except (KeyError, IndexError):
            memory = np.empty(size, np.uint8)
        lease = memory.view()
        # The callback may run inside any allocation of any thread, so it takes no lock: a deque's append is atomic.
        weakref.finalize(lease, self._take_back, memory).atexit = False
        return lease.data[:num_bytes]

    @property
    def num_idle_bytes(self) -> int:
        """Return the memory that nobody uses."""
        return sum(size * len(idle) for size, idle in list(self._idle.items()))

    def _take_back(self, memory: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        if self.num_idle_bytes + memory.nbytes <= self._max_idle_bytes:
            self._idle.setdefault(memory.nbytes, deque()).append(memory)


def _class_bytes(num_bytes: int) -> int:
    """Return the next size of which memory is kept: four sizes per doubling, so at most a quarter lies unused."""
    step = max(1, (1 << (num_bytes - 1).bit_length() - 1) // _CLASSES_PER_DOUBLING)
    return -(-num_bytes // step) * step
