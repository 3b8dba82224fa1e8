"""Frames of a cache's own number format into those of a wire, and back."""

from __future__ import annotations

from dataclasses import replace

from baton.kv.layout import KvDtype, KvLayout
from baton.kv.stream import KvFrame
from baton.kv.wire import Packed, WireCodec


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
