"""What layers keep of a sequence instead of K and V, told by config.json alone; kv.proto says what the tensors hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton.kv.kv_format import StateTensor

GATED_DELTA_FAMILIES = ("qwen3_next",)
"""Those whose layers are gated delta nets, but for every fourth, or as `layer_types` says."""
HYBRID_FAMILIES = GATED_DELTA_FAMILIES
"""Families with layers that keep a state."""
STATE_KINDS = ("linear_attention",)
"""Values of `layer_types` of such layers."""


def state_of(config: Mapping[str, Any], layer: int) -> tuple[StateTensor, ...]:
    """Return the tensors that a layer keeps of a sequence; none: it has K and V."""
    if config["model_type"] not in HYBRID_FAMILIES or kind_of(config, layer) not in STATE_KINDS:
        return ()
    num_value_heads, key_dim = int(config["linear_num_value_heads"]), int(config["linear_key_head_dim"])
    value_dim = int(config["linear_value_head_dim"])
    num_channels = 2 * int(config["linear_num_key_heads"]) * key_dim + num_value_heads * value_dim
    return (
        StateTensor("conv", (int(config["linear_conv_kernel_dim"]) - 1, num_channels)),
        StateTensor("recurrent", (num_value_heads, key_dim, value_dim)),
    )


def kind_of(config: Mapping[str, Any], layer: int) -> str:
    """Return the kind of a layer; folders on the hub may name the distance between attention layers alone."""
    if layer_types := config.get("layer_types"):
        return str(layer_types[layer])
    interval = int(config.get("full_attention_interval") or 4)
    return "linear_attention" if (layer + 1) % interval else "full_attention"
