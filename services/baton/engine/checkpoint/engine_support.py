"""Which engine computes what a model folder asks for, told without any framework: before one is loaded, and by it."""

from __future__ import annotations

from baton.engine.checkpoint.cached_state import LATENT_FAMILIES
from baton.engine.checkpoint.model_folder import Checkpoint
from baton.engine.checkpoint.rope import rope_types
from baton.errors import ConfigurationError

LLAMA_LIKE_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Those that the torch engine computes in its own forward pass."""
_ACTIVATIONS = ("silu", "swish")
_FORMATS_OF_FAMILIES = (("gpt_oss", "mxfp4"), ("kimi_k2", "compressed-tensors"))
"""Formats of others than MLX that mlx-lm reads as they are meant."""
_GEMMA_ACTIVATIONS = ("gelu_pytorch_tanh",)
_SCALED_ROPE_FAMILIES = (
    *(*LATENT_FAMILIES, "gemma3_text", "gemma4_text", "gpt_oss", "llama", "ministral3"),
    *("mistral", "qwen2", "qwen3", "smollm3"),
)
"""Those whose rotary embedding mlx-lm scales; it leaves the others' as if nothing were asked."""


def stays_packed_by_torch(checkpoint: Checkpoint) -> bool:
    """Return whether the torch engine's own forward pass computes a model, with weights as they are packed."""
    return checkpoint.family in LLAMA_LIKE_FAMILIES and checkpoint.config.get("hidden_act") == "silu"


def check_mlx_computes(checkpoint: Checkpoint) -> None:
    """Raise ConfigurationError, naming the field, for what mlx-lm computes unlike transformers, or not at all."""
    method = checkpoint.config.get("quantization_config", {}).get("quant_method")
    if checkpoint.family == "gpt_oss" and not checkpoint.is_repacked:
        cause = "unquantised 'gpt_oss' is served by the torch engine alone; mlx takes it as OpenAI packs it"
        raise ConfigurationError(f"model {checkpoint.directory}: model_type: {cause}")
    if checkpoint.quantization is None and method and (checkpoint.family, method) not in _FORMATS_OF_FAMILIES:
        problem = f"quantization_config.quant_method: the mlx engine reads no {method!r} as it is meant: take the model"
        raise ConfigurationError(f"model {checkpoint.directory}: {problem} in MLX's format, or serve it by torch")
    is_gemma = checkpoint.family.startswith("gemma")
    activation = checkpoint.config.get("hidden_activation" if is_gemma else "hidden_act")
    if activation not in (None, *(_GEMMA_ACTIVATIONS if is_gemma else _ACTIVATIONS)):
        raise ConfigurationError(f"model {checkpoint.directory}: the mlx engine has no hidden_act {activation!r}")
    for name, kind in rope_types(checkpoint.config):
        is_scaled = checkpoint.family in _SCALED_ROPE_FAMILIES and ".sliding_attention." not in name
        if kind != "default" and not is_scaled:
            raise ConfigurationError(
                f"model {checkpoint.directory}: {name}: the mlx engine expected default, got {kind!r}:"
                f" mlx-lm scales no such rotary embedding of {checkpoint.family}"
            )
