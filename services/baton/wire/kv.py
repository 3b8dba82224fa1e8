"""Layouts and dtypes between messages (kv.proto) and the domain (baton.kv.kv_format)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

from baton.capacity.kv_transfer import WireAbility
from baton.errors import InvalidFieldError, check_range
from baton.internal.v1 import block_service_pb2, kv_pb2, node_pb2, prefill_service_pb2, router_service_pb2
from baton.kv.kv_format import KvDtype, KvLayout, LayerSpec, RopeState, StateTensor, WireFormat, check_wire
from baton.v1 import generation_pb2

WireMessage: TypeAlias = (
    kv_pb2.KvLayout
    | prefill_service_pb2.PrefillRequest
    | block_service_pb2.PullBlocksRequest
    | router_service_pb2.Placement
    | router_service_pb2.PrefixPull
)
"""Messages that say in what frames travel, by `wire_dtype` and `value_wire_dtype`."""

_DTYPES = {
    KvDtype.FLOAT32: generation_pb2.KV_DTYPE_FLOAT32,
    KvDtype.FLOAT16: generation_pb2.KV_DTYPE_FLOAT16,
    KvDtype.BFLOAT16: generation_pb2.KV_DTYPE_BFLOAT16,
    KvDtype.INT8: generation_pb2.KV_DTYPE_INT8,
    KvDtype.AFFINE8: generation_pb2.KV_DTYPE_AFFINE8,
    KvDtype.FP8: generation_pb2.KV_DTYPE_FP8,
}
_LOSSES = ("key_loss", "value_loss")
_DTYPES_BACK = {value: key for key, value in _DTYPES.items()}
_ROPE_STATES: dict[RopeState, kv_pb2.RopeState] = {
    "rotated_half": kv_pb2.ROPE_STATE_ROTATED_HALF,
    "none": kv_pb2.ROPE_STATE_NONE,
}
_ROPE_STATES_BACK = {value: key for key, value in _ROPE_STATES.items()}


def dtype_from_proto(value: generation_pb2.KvDtype, *, field: str = "dtype") -> KvDtype:
    """Return the dtype of a message value; raise InvalidFieldError if it is unspecified or unknown."""
    if value not in _DTYPES_BACK:
        raise InvalidFieldError(field, f"expected a KvDtype this node knows, got {value}")
    return _DTYPES_BACK[value]


def dtype_to_proto(dtype: KvDtype) -> generation_pb2.KvDtype:
    """Return the message value of a dtype."""
    return _DTYPES[dtype]


def wire_from_proto(message: WireMessage, layout: KvLayout, receiver: KvDtype | None = None) -> WireFormat:
    """Return in what frames travel, the cache's own by default; raise InvalidFieldError if it cannot be so."""
    keys = dtype_from_proto(message.wire_dtype, field="wire_dtype") if message.wire_dtype else layout.dtype
    is_one = not message.value_wire_dtype
    values = keys if is_one else dtype_from_proto(message.value_wire_dtype, field="value_wire_dtype")
    check_wire(layout, WireFormat(keys, values), receiver)
    return WireFormat(keys, values)


def abilities_from_proto(messages: Iterable[node_pb2.WireAbility], *, field: str) -> tuple[WireAbility, ...]:
    """Return a message's formats that are known here; raise InvalidFieldError if a rate or loss cannot be."""
    abilities = []
    for message in messages:
        for name in ("pack_bytes_per_second", "unpack_bytes_per_second"):
            if not 0 < getattr(message, name) < math.inf:
                raise InvalidFieldError(f"{field}.{name}", f"must be positive, got {getattr(message, name)}")
        losses = [getattr(message, name) if message.HasField(name) else math.inf for name in _LOSSES]
        for name, loss in zip(_LOSSES, losses, strict=True):
            if not loss >= 0:
                raise InvalidFieldError(f"{field}.{name}", f"must be 0 or more, got {loss}")
        if message.dtype in _DTYPES_BACK:
            rates = (message.pack_bytes_per_second, message.unpack_bytes_per_second)
            abilities.append(WireAbility(_DTYPES_BACK[message.dtype].value, *rates, *losses))
    return tuple(abilities)


def abilities_to_proto(abilities: Iterable[WireAbility]) -> list[node_pb2.WireAbility]:
    """Return the messages of formats."""
    return [
        node_pb2.WireAbility(
            dtype=_DTYPES[KvDtype(ability.dtype)],
            pack_bytes_per_second=ability.pack_bytes_per_second,
            unpack_bytes_per_second=ability.unpack_bytes_per_second,
            key_loss=ability.key_loss if math.isfinite(ability.key_loss) else None,
            value_loss=ability.value_loss if math.isfinite(ability.value_loss) else None,
        )
        for ability in abilities
    ]


def layout_to_proto(layout: KvLayout) -> kv_pb2.KvLayout:
    """Return the message of a layout."""
    return kv_pb2.KvLayout(
        protocol_version=layout.protocol_version,
        model_id=layout.model_id,
        model_revision_digest=layout.model_revision_digest,
        tokenizer_digest=layout.tokenizer_digest,
        layers=[_spec_to_proto(spec) for spec in layout.layers],
        rope_state=_ROPE_STATES[layout.rope_state],
        dtype=_DTYPES[layout.dtype],
        wire_dtype=_DTYPES[layout.wire.keys] if layout.wire else generation_pb2.KV_DTYPE_UNSPECIFIED,
        value_wire_dtype=_DTYPES[layout.wire.values] if layout.wire else generation_pb2.KV_DTYPE_UNSPECIFIED,
        weight_rounding=layout.weight_rounding,
    )


def layout_from_proto(message: kv_pb2.KvLayout, *, field: str = "layout") -> KvLayout:
    """Return a message's layout without its frames; raise InvalidFieldError if its fields are not one's that exists."""
    if message.rope_state not in _ROPE_STATES_BACK:
        raise InvalidFieldError(f"{field}.rope_state", f"expected a RopeState, got {message.rope_state}")
    return KvLayout(
        model_id=message.model_id,
        model_revision_digest=message.model_revision_digest,
        tokenizer_digest=message.tokenizer_digest,
        layers=tuple(
            _spec_from_proto(spec, field=f"{field}.layers[{layer}]") for layer, spec in enumerate(message.layers)
        ),
        dtype=dtype_from_proto(message.dtype, field=f"{field}.dtype"),
        rope_state=_ROPE_STATES_BACK[message.rope_state],
        protocol_version=message.protocol_version,
        weight_rounding=message.weight_rounding or "none",
    )


def _spec_from_proto(spec: kv_pb2.KvLayerSpec, *, field: str) -> LayerSpec:
    if spec.attention_kind == kv_pb2.ATTENTION_KIND_STATE:
        return LayerSpec(0, 0, 0, state=state_from_proto(spec.state_tensors))
    for name in ("kv_head_count", "key_head_dim", "value_head_dim"):
        check_range(f"{field}.{name}", getattr(spec, name), 1)
    window = spec.sliding_window_token_count
    check_range(f"{field}.sliding_window_token_count", window, 0)
    if spec.attention_kind != (kv_pb2.ATTENTION_KIND_SLIDING if window else kv_pb2.ATTENTION_KIND_FULL):
        problem = f"expected the kind of a layer with a window of {window} tokens, got {spec.attention_kind}"
        raise InvalidFieldError(f"{field}.attention_kind", problem)
    return LayerSpec(spec.kv_head_count, spec.key_head_dim, spec.value_head_dim, window)


def _spec_to_proto(spec: LayerSpec) -> kv_pb2.KvLayerSpec:
    if spec.state:
        tensors = state_to_proto(spec.state)
        return kv_pb2.KvLayerSpec(attention_kind=kv_pb2.ATTENTION_KIND_STATE, state_tensors=tensors)
    return kv_pb2.KvLayerSpec(
        attention_kind=kv_pb2.ATTENTION_KIND_SLIDING if spec.sliding_window_tokens else kv_pb2.ATTENTION_KIND_FULL,
        kv_head_count=spec.num_kv_heads,
        key_head_dim=spec.key_head_dim,
        value_head_dim=spec.value_head_dim,
        sliding_window_token_count=spec.sliding_window_tokens,
    )


def state_from_proto(messages: Iterable[kv_pb2.StateTensor]) -> tuple[StateTensor, ...]:
    """Return the tensors of a state as a peer describes them; who compares them with its own refuses others."""
    return tuple(StateTensor(each.name, tuple(each.shape), _DTYPES_BACK.get(each.dtype)) for each in messages)


def state_to_proto(state: Iterable[StateTensor]) -> list[kv_pb2.StateTensor]:
    """Return the messages of a state's tensors."""
    return [
        kv_pb2.StateTensor(name=each.name, shape=each.shape, dtype=_DTYPES[each.dtype] if each.dtype else None)
        for each in state
    ]
