"""Shape and number format of a KV cache, how two nodes find out that theirs differ, and formats on the wire.

A row is the vector of one KV head at one position. Of a packed row there are its elements, and its scales, which
travel apart (protos/baton/internal/v1/kv.proto, KvDtype).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from baton.errors import InvalidFieldError, MismatchError

PROTOCOL_VERSION = 1
"""Version of the KV stream's rules (protos/baton/internal/v1/kv.proto)."""

_SPEC_FIELDS = {
    "num_kv_heads": "kv_head_count",
    "key_head_dim": "key_head_dim",
    "value_head_dim": "value_head_dim",
    "sliding_window_tokens": "sliding_window_token_count",
    "state": "state_tensors",
}
"""Fields of `LayerSpec`, and their names in kv.proto: nodes of other languages know no others."""

RopeState = Literal["rotated_half", "none"]


class KvDtype(Enum):
    """Number format of cached or transmitted K and V."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    AFFINE8 = "affine8"
    FP8 = "fp8"

    @property
    def num_bytes(self) -> int:
        """Return the size of one element, bytes, scales not counted."""
        return {"float32": 4, "float16": 2, "bfloat16": 2}.get(self.value, 1)


class WireFormat(NamedTuple):
    """In what K and V travel."""

    keys: KvDtype
    values: KvDtype


class StateTensor(NamedTuple):
    """A tensor of what a layer keeps of a sequence instead of K and V of its positions."""

    name: str
    """"conv" or "recurrent"; kv.proto says what they hold."""
    shape: tuple[int, ...]
    dtype: KvDtype | None = KvDtype.FLOAT32
    """None: one that a peer names and this node does not know."""

    @property
    def num_bytes(self) -> int:
        """Return its size."""
        return math.prod(self.shape) * (self.dtype.num_bytes if self.dtype else 0)


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The cache of one layer: K and V of every position, or one state of the sequence."""

    num_kv_heads: int
    """KV heads, 1 or more; 0: the layer keeps a state."""
    key_head_dim: int
    value_head_dim: int
    sliding_window_tokens: int = 0
    """Positions attended to, the current one included; 0: all."""
    state: tuple[StateTensor, ...] = ()
    """What the state consists of; it travels and is kept in one piece, tensor after tensor."""

    @property
    def state_bytes(self) -> int:
        """Return the bytes of a sequence's state; 0: the layer has K and V."""
        return sum(tensor.num_bytes for tensor in self.state)

    @property
    def num_token_elements(self) -> int:
        """Return the K and V elements of one token."""
        return self.num_kv_heads * (self.key_head_dim + self.value_head_dim)

    def is_shaped_like(self, other: LayerSpec) -> bool:
        """Return whether one frame may hold both layers: they have K and V of the same shape."""
        if self.state or other.state:
            return False
        mine = (self.num_kv_heads, self.key_head_dim, self.value_head_dim)
        return mine == (other.num_kv_heads, other.key_head_dim, other.value_head_dim)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Everything that a sender and a receiver of KV must agree on."""

    model_id: str
    """Served name, for people; not compared."""
    model_revision_digest: str
    """Digest of configuration, end tokens and weights in float32, whatever holds them: 32 hexadecimal digits."""
    tokenizer_digest: str
    """Digest of the tokenizer files; empty: not known, not compared."""
    layers: tuple[LayerSpec, ...]
    """One per cache, in order of depth: layers have one as a rule, of a state or of K and V, but some two or none."""
    dtype: KvDtype
    """Number format of the cache, and of activations."""
    rope_state: RopeState = "rotated_half"
    protocol_version: int = PROTOCOL_VERSION
    wire: WireFormat | None = None
    """In what a stream's frames are; None: in `dtype`. Not compared: it is a stream's, not a cache's."""
    weight_rounding: str = "none"
    """To what weights are rounded before they are multiplied: told, not compared, as kv.proto says."""

    @property
    def wire_format(self) -> WireFormat:
        """Return in what frames are."""
        return self.wire or WireFormat(self.dtype, self.dtype)

    @property
    def is_wire_lossless(self) -> bool:
        """Return whether frames hold this cache's own bytes; a peer's may have been rounded to them."""
        return self.wire_format == (self.dtype, self.dtype)

    @property
    def num_layers(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    @property
    def kv_layers(self) -> list[int]:
        """Return the layers that have K and V."""
        return [layer for layer, spec in enumerate(self.layers) if not spec.state]

    def num_token_bytes(self) -> int:
        """Return the bytes of one token over all layers in the cache."""
        return sum(spec.num_token_elements for spec in self.layers) * self.dtype.num_bytes

    def num_state_bytes(self) -> int:
        """Return the bytes that a sequence keeps besides, however long it is."""
        return sum(spec.state_bytes for spec in self.layers)

    def check_matches(self, peer: KvLayout, *, is_converted: bool = False) -> None:
        """Compare with a peer's layout.

        `is_converted`: frames travel in a format that was agreed upon, so that the caches' own may differ. Raises
        MismatchError naming the first field that differs, as kv.proto calls it.
        """
        for field in ("protocol_version", "model_revision_digest", "rope_state", *(() if is_converted else ("dtype",))):
            mine, theirs = getattr(self, field), getattr(peer, field)
            if mine != theirs:
                raise MismatchError(field, getattr(mine, "value", mine), getattr(theirs, "value", theirs))
        if self.tokenizer_digest and peer.tokenizer_digest and self.tokenizer_digest != peer.tokenizer_digest:
            raise MismatchError("tokenizer_digest", self.tokenizer_digest, peer.tokenizer_digest)
        if self.num_layers != peer.num_layers:
            raise MismatchError("layers", self.num_layers, peer.num_layers)
        for layer, (mine_spec, their_spec) in enumerate(zip(self.layers, peer.layers, strict=True)):
            for field, wire_name in _SPEC_FIELDS.items():
                mine, theirs = getattr(mine_spec, field), getattr(their_spec, field)
                if mine != theirs:
                    raise MismatchError(f"layers[{layer}].{wire_name}", mine, theirs)


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
    values: int


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
    """Check that a cache can travel in a format; raise InvalidFieldError naming the dtype and what is against it."""
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
    dims = [dim for spec in layout.layers for dim in (spec.key_head_dim, spec.value_head_dim) if dim % AFFINE_GROUP]
    if dtype is KvDtype.AFFINE8 and dims:
        return f"affine8 shares scales between {AFFINE_GROUP} elements: a head of {dims[0]} is no multiple of it"
    return ""
