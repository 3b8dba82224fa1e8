"""The check of KV frames: numbered, checksummed, and tiling the promised positions; on either side of a stream."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import crc32c
import numpy as np

from baton.errors import StreamBrokenError
from baton.kv.kv_format import KvLayout, scale_bytes
from baton.kv.stream import KvFrame, KvProgress


@dataclass(frozen=True, slots=True)
class StreamTotals:
    """What a sender says at the end of a stream, and a receiver has counted itself."""

    num_frames: int
    """Frames."""
    num_bytes: int
    """Payload bytes."""
    frames_crc32c: int
    """Checksum over the frames' checksums, in order."""
    token_begin: int
    """First position of the stream."""
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
    would break it; `close` refuses a stream whose layers do not all end at the prompt's end.

    Args:
        layout: Shape of the cache.
        owed: What the stream has to bring.
        stream_key: Key that the header of every frame must prove; None: frames have none, and count only together.
    """

    def __init__(self, layout: KvLayout, owed: KvProgress, stream_key: int | None = None) -> None:
        self._layout = layout
        self._owed = owed
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

        Args:
            frame: What arrived.
            sequence_number: Its number, as the sender gave it.
            crc: Its checksum, as the sender gave it.
            actual_crc: Checksum of what arrived, where it was computed on arrival; None: it is computed here.
            header_crc: Checksum of its number and place, as the sender gave it; None: it gave none.

        Raises:
            StreamBrokenError: If its number, range, size or checksum is wrong; the message says which.
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
        """Enter a frame that is about to be sent; return its number and its checksum.

        Raises:
            StreamBrokenError: If its range or size is wrong.
        """
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
        """Check the sender's totals at the end of the stream.

        Raises:
            StreamBrokenError: If a layer is incomplete or a total differs.
        """
        for layer, next_token in enumerate(self._next_token):
            if next_token != self._token_end:
                raise StreamBrokenError(f"layer {layer} ends at position {next_token}, not at {self._token_end}")
        if promised != self.totals:
            raise StreamBrokenError(f"the sender promised {promised}, {self.totals} arrived")

    def _check_range(self, frame: KvFrame) -> None:
        layer_end = frame.layer_begin + frame.num_layers
        if frame.num_layers < 1 or frame.layer_begin < 0 or layer_end > self._layout.num_layers:
            raise StreamBrokenError(f"layers [{frame.layer_begin}, {layer_end}) are not in the model")
        first, *others = self._layout.layers[frame.layer_begin : layer_end]
        if not all(first.is_shaped_like(other) for other in others):
            raise StreamBrokenError(f"layers [{frame.layer_begin}, {layer_end}) differ in shape: not in one frame")
        if frame.num_tokens < 1 or frame.token_begin + frame.num_tokens > self._token_end:
            raise StreamBrokenError(
                f"positions [{frame.token_begin}, {frame.token_begin + frame.num_tokens}) reach past {self._token_end}"
            )
        for layer in range(frame.layer_begin, layer_end):
            if frame.token_begin != self._next_token[layer]:
                raise StreamBrokenError(
                    f"layer {layer}: positions from {frame.token_begin} arrived where {self._next_token[layer]} was due"
                )

    def _check_size(self, frame: KvFrame) -> None:
        wire, cache = self._layout.wire_format, self._layout.dtype
        specs = self._layout.layers[frame.layer_begin : frame.layer_begin + frame.num_layers]
        num_rows = frame.num_tokens * sum(spec.num_kv_heads for spec in specs)
        key_dim, value_dim = specs[0].key_head_dim, specs[0].value_head_dim  # those of all: the range was checked
        expected = {
            "keys": num_rows * key_dim * wire.keys.num_bytes,
            "values": num_rows * value_dim * wire.values.num_bytes,
            "key_scales": num_rows * scale_bytes(wire.keys, cache, key_dim),
            "value_scales": num_rows * scale_bytes(wire.values, cache, value_dim),
        }
        for field, num_bytes in expected.items():
            if len(getattr(frame, field)) != num_bytes:
                raise StreamBrokenError(f"frame has {len(getattr(frame, field))} bytes of {field}, not {num_bytes}")
