"""What layers keep of a sequence instead of K and V, told by config.json alone; kv.proto says what the tensors hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from baton.engine.checkpoint.mamba import MAMBA_FAMILIES, mamba_state
from baton.engine.checkpoint.weights import ALL, Weight
from baton.kv.kv_format import StateTensor

GATED_DELTA_FAMILIES = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
"""Those whose layers are gated delta nets, but for every fourth, or as `layer_types` says."""
HYBRID_FAMILIES = (*GATED_DELTA_FAMILIES, *MAMBA_FAMILIES, "lfm2")
"""Families with layers that keep a state."""
_CONVOLUTIONS = (".conv1d.weight", ".conv.conv.weight")
NORMS = ("layernorm.weight", "model.norm.weight", ".q_norm.weight", ".k_norm.weight")
"""Those that a gated delta family multiplies by 1 + weight; MLX keeps the sum."""
STATE_KINDS = ("conv", "linear_attention", "hybrid")
"""Values of `layer_types` of such layers."""


def state_of(config: Mapping[str, Any], layer: int) -> tuple[StateTensor, ...]:
    """Return the tensors that a layer keeps of a sequence; none: it has K and V."""
    if config["model_type"] not in HYBRID_FAMILIES or kind_of(config, layer) not in STATE_KINDS:
        return ()
    if config["model_type"] in MAMBA_FAMILIES:
        return mamba_state(config)
    if config["model_type"] == "lfm2":
        return (StateTensor("conv", (int(config["conv_L_cache"]) - 1, int(config["hidden_size"]))),)
    num_value_heads, key_dim = int(config["linear_num_value_heads"]), int(config["linear_key_head_dim"])
    value_dim = int(config["linear_value_head_dim"])
    num_channels = 2 * int(config["linear_num_key_heads"]) * key_dim + num_value_heads * value_dim
    return (
        StateTensor("conv", (int(config["linear_conv_kernel_dim"]) - 1, num_channels)),
        StateTensor("recurrent", (num_value_heads, key_dim, value_dim)),
    )


def kind_of(config: Mapping[str, Any], layer: int) -> str:
    """Return the kind of a layer; folders on the hub may name the distance between attention layers alone."""
    if config["model_type"] == "falcon_h1":
        return "hybrid"
    if layer_types := config.get("layer_types") or config.get("layers_block_type"):
        return str(layer_types[layer])
    if (attending := config.get("full_attn_idxs")) is not None:
        return "full_attention" if layer in attending else "conv"
    interval = int(config.get("full_attention_interval") or 4)
    return "linear_attention" if (layer + 1) % interval else "full_attention"


def in_layout_of_hub(weights: dict[str, Weight], family: str) -> dict[str, Weight]:
    """Return what a folder of MLX's stands for in Hugging Face's: its convolutions have the taps before the channel."""
    if not any(name.endswith(_CONVOLUTIONS) and weight.shape[-1] == 1 for name, weight in weights.items()):
        return weights

    def turned(weight: Weight) -> Weight:
        num_channels, num_taps, _ = weight.shape
        read = lambda rows: weight.read(ALL).reshape(num_channels, num_taps)[rows]  # noqa: E731
        return weight._replace(shape=(num_channels, 1, num_taps), read=read)

    def less_one(weight: Weight) -> Weight:
        return weight._replace(read=lambda rows: weight.read(rows) - np.float32(1))

    norms = NORMS if family in GATED_DELTA_FAMILIES else ()
    return {
        name: turned(weight) if name.endswith(_CONVOLUTIONS) else less_one(weight) if name.endswith(norms) else weight
        for name, weight in weights.items()
    }
