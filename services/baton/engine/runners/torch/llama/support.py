"""Which models Baton's own forward pass computes as transformers does."""

from __future__ import annotations

from typing import Any

_CLASSES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
_PROJECTIONS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_GATES = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
_NORMS = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")
_LAYER_PARAMETERS = frozenset(f"{name}.weight" for name in (*_PROJECTIONS, *_GATES, *_NORMS)) | frozenset(
    f"{name}.bias" for name in (*_PROJECTIONS, *_GATES)
)


def is_llama_like(model: Any) -> bool:
    """Return whether `LlamaModel` computes what a transformers model does.

    The class is known, every layer holds the parameters that the fused layer uses and no others, and the gate is SiLU:
    a variant of a family that adds something is left to transformers.
    """
    if type(model).__name__ not in _CLASSES or model.config.hidden_act != "silu":
        return False
    return all(
        {name for name, _ in layer.named_parameters()} <= _LAYER_PARAMETERS for layer in model.get_decoder().layers
    )
