"""A KV stream: its frames, in which order they come, and how far a prompt's KV has come, layer by layer.

Frames are packed from a cache's own number format into the stream's, and back. They are received into memory that is
used again and again, because fresh memory costs a page fault per 4 KiB. On either side of a stream its ledger checks
frames: they are numbered, checksummed, and tile the promised positions.
"""

from __future__ import annotations

import struct
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Self

import crc32c
import numpy as np

from baton.errors import StreamBrokenError
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec, Packed, StateTensor, WireCodec, scale_bytes

_SMALLEST_BYTES = 64 << 10
"""Less is given from the allocator, which keeps small memory itself."""
_CLASSES_PER_DOUBLING = 4


class FrameKind(IntEnum):
    """What a frame holds; open: a sender may know more kinds than its receiver, which refuses those."""

    KV = 1
    STATE = 2
    """The state of one layer after the prompt's last position: `keys` has its tensors one after the other."""


@dataclass(frozen=True, slots=True)
class KvFrame:
    """K and V of consecutive layers and positions, or a state (protos/baton/internal/v1/kv.proto, KvFrame)."""

    layer_begin: int
    num_layers: int
    """Layers, 1 or more."""
    token_begin: int
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
    kind: int = FrameKind.KV
    """A `FrameKind`, or what a sender says instead."""
    state: tuple[StateTensor, ...] = ()
    """Of a state: its tensors."""

    @property
    def num_bytes(self) -> int:
        """Return the payload size."""
        return len(self.keys) + len(self.values) + len(self.key_scales) + len(self.value_scales)


def kind_of(spec: LayerSpec) -> FrameKind:
    """Return what frames of a layer hold."""
    return FrameKind.STATE if spec.state else FrameKind.KV


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
    """Positions whose KV is there: layer `l` has [0, next_tokens[l]) and lacks [next_tokens[l], num_tokens)."""

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
            + (spec.state_bytes if next_token < self.num_tokens else 0)
            for spec, next_token in zip(layout.layers, self.next_tokens, strict=True)
        )


def pack_frame(codec: WireCodec, layout: KvLayout, frame: KvFrame) -> KvFrame:
    """Return a frame of the cache in the format of the stream; a state is never rounded."""
    if frame.state:
        return frame
    spec, wire = layout.layers[frame.layer_begin], layout.wire_format
    keys = _pack(codec, frame.keys, layout.dtype, wire.keys, spec.key_head_dim)
    values = _pack(codec, frame.values, layout.dtype, wire.values, spec.value_head_dim)
    return replace(frame, keys=keys.data, values=values.data, key_scales=keys.scales, value_scales=values.scales)


def unpack_frame(codec: WireCodec, layout: KvLayout, frame: KvFrame) -> KvFrame:
    """Return a frame of the stream, whose sizes have been checked, in the cache's own format."""
    if frame.state:
        return frame
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


class ContradictionError(StreamBrokenError):
    """A frame proves its stream, and a place or size that it cannot have: its sender errs, and may have before."""


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """What a sender says at the end of a stream, and a receiver has counted itself."""

    num_frames: int
    num_bytes: int
    """Payload bytes."""
    frames_crc32c: int
    """Checksum over the frames' checksums, in order."""
    token_begin: int
    token_end: int
    """Position after the last one, in every layer."""


def payload_crc32c(
    keys: bytes | memoryview,
    values: bytes | memoryview,
    key_scales: bytes | memoryview = b"",
    value_scales: bytes | memoryview = b"",
) -> int:
    """Return the CRC-32C of a frame's payload, scales first. 0.07 CPU-seconds per GB (docs/kv_stream.md)."""
    scales = crc32c.crc32c(value_scales, crc32c.crc32c(key_scales))
    return int(crc32c.crc32c(values, crc32c.crc32c(keys, scales)))


def frame_crc32c(frame: KvFrame) -> int:
    """Return the CRC-32C of a frame's payload."""
    return payload_crc32c(frame.keys, frame.values, frame.key_scales, frame.value_scales)


def tokens_crc32c(token_ids: Sequence[int], next_token_id: int) -> int:
    """Return the CRC-32C of a prompt and the token that follows it, each as 4 little-endian bytes."""
    words = np.fromiter((*token_ids, next_token_id), dtype="<i4", count=len(token_ids) + 1)
    return int(crc32c.crc32c(words.tobytes()))


def header_crc32c(stream_key: int, sequence_number: int, frame: KvFrame, crc: int) -> int:
    """Return the CRC-32C of what a frame says of itself, in the stream that has this key (kv.proto, header_crc32c)."""
    place = (frame.layer_begin, frame.num_layers, frame.token_begin, frame.num_tokens)
    return int(crc32c.crc32c(struct.pack("<IqiiiiI", stream_key, sequence_number, *place, crc)))


class StreamLedger:
    """Keeps account of one stream, on either side: frames are numbered, checksummed, and tile the promised positions.

    Invariant: layer `l` has the positions [its begin, _next_token[l]) exactly once. `enter` refuses any frame that
    would break it; `close` refuses a stream whose layers do not all end at the prompt's end. The header of every frame
    must prove `stream_key`; None: frames have none, and count only together.
    """

    def __init__(self, layout: KvLayout, owed: KvProgress, stream_key: int | None = None) -> None:
        self._layout, self._owed = layout, owed
        self._stream_key = stream_key
        self._token_begin = owed.complete_tokens
        self._token_end = owed.num_tokens
        self._next_token = list(owed.next_tokens)
        self._num_frames = 0
        self._num_bytes = 0
        self._crc = 0

    @property
    def totals(self) -> StreamTotals:
        """Return the counts so far."""
        token_end = min(self._next_token, default=self._token_begin)
        return StreamTotals(self._num_frames, self._num_bytes, self._crc, self._token_begin, token_end)

    @property
    def progress(self) -> KvProgress:
        """Return what is there even if the stream breaks now: with its frames where they prove their place."""
        return self._owed if self._stream_key is None else KvProgress(tuple(self._next_token), self._token_end)

    def enter(
        self,
        frame: KvFrame,
        sequence_number: int,
        crc: int,
        actual_crc: int | None = None,
        header_crc: int | None = None,
    ) -> None:
        """Check a frame against the stream so far and enter it.

        `actual_crc` is the checksum of what arrived; None: it is computed here. `header_crc` is that of its number and
        place, as the sender gave it; None: it gave none. Raises StreamBrokenError if its number, range, size or
        checksum is wrong; the message says which.
        """
        if sequence_number != self._num_frames:
            raise StreamBrokenError(f"frame {sequence_number} arrived where {self._num_frames} was due")
        if self._stream_key is not None and header_crc != header_crc32c(self._stream_key, sequence_number, frame, crc):
            raise StreamBrokenError(f"frame {sequence_number} has a wrong header checksum: it is not of this stream")
        self._check_range(frame)
        self._check_size(frame)
        if (frame_crc32c(frame) if actual_crc is None else actual_crc) != crc:
            raise StreamBrokenError(f"frame {sequence_number} has a wrong checksum: its bytes were changed on the way")
        self._record(frame, crc)

    def append(self, frame: KvFrame) -> tuple[int, int]:
        """Enter a frame to be sent; return its number and checksum. Raises StreamBrokenError if it does not fit."""
        self._check_range(frame)
        self._check_size(frame)
        sequence_number, crc = self._num_frames, frame_crc32c(frame)
        self._record(frame, crc)
        return sequence_number, crc

    def _record(self, frame: KvFrame, crc: int) -> None:
        for layer in range(frame.layer_begin, frame.layer_begin + frame.num_layers):
            self._next_token[layer] += frame.num_tokens
        self._num_frames += 1
        self._num_bytes += frame.num_bytes
        self._crc = crc32c.crc32c(struct.pack("<I", crc), self._crc)

    def close(self, promised: StreamTotals) -> None:
        """Check the sender's totals at the end of the stream; raise StreamBrokenError if a layer or a total differs."""
        for layer, next_token in enumerate(self._next_token):
            if next_token != self._token_end:
                raise StreamBrokenError(f"layer {layer} ends at position {next_token}, not at {self._token_end}")
        if promised != self.totals:
            raise StreamBrokenError(f"the sender promised {promised}, {self.totals} arrived")

    def _check_range(self, frame: KvFrame) -> None:
        layer_end = frame.layer_begin + frame.num_layers
        if frame.num_layers < 1 or frame.layer_begin < 0 or layer_end > self._layout.num_layers:
            raise ContradictionError(f"layers [{frame.layer_begin}, {layer_end}) are not in the model")
        first, *others = self._layout.layers[frame.layer_begin : layer_end]
        if not all(first.is_shaped_like(other) for other in others):
            raise ContradictionError(f"layers [{frame.layer_begin}, {layer_end}) differ in shape: not in one frame")
        if frame.num_tokens < 1 or frame.token_begin + frame.num_tokens > self._token_end:
            raise ContradictionError(
                f"positions [{frame.token_begin}, {frame.token_begin + frame.num_tokens}) reach past {self._token_end}"
            )
        if first.state and frame.token_begin + frame.num_tokens != self._token_end:
            raise ContradictionError(
                f"token_count: layer {frame.layer_begin} has a state after {frame.token_begin + frame.num_tokens}"
                f" positions, not after {self._token_end}"
            )
        for layer in range(frame.layer_begin, layer_end):
            if frame.token_begin != self._next_token[layer]:
                raise ContradictionError(
                    f"layer {layer}: positions from {frame.token_begin} arrived where {self._next_token[layer]} was due"
                )

    def _check_size(self, frame: KvFrame) -> None:
        wire, cache = self._layout.wire_format, self._layout.dtype
        specs = self._layout.layers[frame.layer_begin : frame.layer_begin + frame.num_layers]
        kind = kind_of(specs[0])
        if frame.kind != kind:
            raise ContradictionError(f"kind: layer {frame.layer_begin} has frames of kind {kind:d}, not {frame.kind}")
        if frame.state != specs[0].state:
            raise ContradictionError(
                f"state_tensors: layer {frame.layer_begin} has {specs[0].state}, not {frame.state}"
            )
        num_rows = frame.num_tokens * sum(spec.num_kv_heads for spec in specs)
        key_dim, value_dim = specs[0].key_head_dim, specs[0].value_head_dim  # those of all: the range was checked
        expected = {
            "keys": num_rows * key_dim * wire.keys.num_bytes + specs[0].state_bytes,
            "values": num_rows * value_dim * wire.values.num_bytes,
            "key_scales": num_rows * scale_bytes(wire.keys, cache, key_dim),
            "value_scales": num_rows * scale_bytes(wire.values, cache, value_dim),
        }
        for field, num_bytes in expected.items():
            if len(getattr(frame, field)) != num_bytes:
                raise ContradictionError(f"frame has {len(getattr(frame, field))} bytes of {field}, not {num_bytes}")
