"""What a node's KV cache looks like, and how two nodes find out that they differ."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from baton.errors import MismatchError

PROTOCOL_VERSION = 1
"""Version of the KV stream's rules (protos/baton/v1/kv.proto)."""

_SPEC_FIELDS = {
    "num_kv_heads": "kv_head_count",
    "key_head_dim": "key_head_dim",
    "value_head_dim": "value_head_dim",
    "sliding_window_tokens": "sliding_window_token_count",
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
    """Number format of K."""
    values: KvDtype
    """Number format of V."""


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """The cache of one layer."""

    num_kv_heads: int
    """KV heads, 1 or more."""
    key_head_dim: int
    """Elements of one key vector."""
    value_head_dim: int
    """Elements of one value vector."""
    sliding_window_tokens: int = 0
    """Positions attended to, the current one included; 0: all."""

    @property
    def num_token_elements(self) -> int:
        """Return the K and V elements of one token."""
        return self.num_kv_heads * (self.key_head_dim + self.value_head_dim)

    def is_shaped_like(self, other: LayerSpec) -> bool:
        """Return whether K and V of both layers have the same shape, so that one frame may hold them."""
        mine = (self.num_kv_heads, self.key_head_dim, self.value_head_dim)
        return mine == (other.num_kv_heads, other.key_head_dim, other.value_head_dim)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Everything that a sender and a receiver of KV must agree on."""

    model_id: str
    """Served name, for people; not compared."""
    model_revision_digest: str
    """Digest of configuration, end tokens and weights, 32 hexadecimal digits."""
    tokenizer_digest: str
    """Digest of the tokenizer files; empty: not known, not compared."""
    layers: tuple[LayerSpec, ...]
    """One per layer, in order of depth."""
    dtype: KvDtype
    """Number format of the cache."""
    rope_state: RopeState = "rotated_half"
    """Whether K is rotated."""
    protocol_version: int = PROTOCOL_VERSION
    """Version of the stream's rules."""
    wire: WireFormat | None = None
    """In what a stream's frames are; None: in `dtype`. Not compared: it is a stream's, not a cache's."""

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

    def num_token_bytes(self) -> int:
        """Return the bytes of one token over all layers in the cache."""
        return sum(spec.num_token_elements for spec in self.layers) * self.dtype.num_bytes

    def check_matches(self, peer: KvLayout, *, is_converted: bool = False) -> None:
        """Compare with a peer's layout.

        Args:
            peer: The other one.
            is_converted: Whether frames travel in a format that was agreed upon, so that the caches' own may differ.

        Raises:
            MismatchError: Naming the first field that differs, as kv.proto calls it.
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
