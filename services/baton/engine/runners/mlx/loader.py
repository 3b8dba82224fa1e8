"""Loads a model of mlx-lm from a Hugging Face folder so that it computes what transformers computes."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten
from mlx_lm.models.rope_utils import YarnRoPE
from mlx_lm.utils import load_model

from baton.engine.checkpoint.cached_state import LATENT_FAMILIES
from baton.engine.checkpoint.engine_support import check_mlx_computes
from baton.engine.checkpoint.mamba import MAMBA_FAMILIES
from baton.engine.checkpoint.model_folder import Checkpoint
from baton.engine.checkpoint.recurrent_state import GATED_DELTA_FAMILIES, NORMS
from baton.engine.checkpoint.rope import Yarn, read_yarn, rope_parameters
from baton.engine.checkpoint.weights import ALL
from baton.engine.runners.mlx.kv_cache.cells import group_size_of
from baton.engine.runners.mlx.modules.latents import classes_of, conform
from baton.engine.runners.mlx.modules.llama_layers import fuse
from baton.engine.runners.mlx.modules.mamba import arguments_of, conform_mamba
from baton.errors import ConfigurationError

_IN_FLOAT32 = ("e_score_correction_bias", "A_log")
_PARTS_OF_HEADS = {"glm4_moe": 0.5, "minimax_m2": 1.0, **dict.fromkeys(GATED_DELTA_FAMILIES, 0.25)}
"""Families that rotate a part of each head, and which unless a folder says another."""
_PLAIN_KV_FAMILIES = (*LATENT_FAMILIES, "gemma2", "gemma4_text", "gpt_oss")


def compute_device() -> mx.Device:
    """Return the GPU where Metal is available, else the CPU."""
    return mx.Device(mx.gpu if mx.metal.is_available() else mx.cpu)


def device_name() -> str:
    """Return the device in words, such as "gpu: Apple M3 Max"."""
    device = compute_device()
    kind = "gpu" if mx.metal.is_available() else "cpu"
    return f"{kind}: {mx.device_info(device).get('device_name', 'unknown')}"


def load_mlx_model(checkpoint: Checkpoint, dtype: mx.Dtype) -> Any:
    """Return an mlx-lm model with its weights in `dtype`, everything evaluated.

    A lazy array can be evaluated only by the thread that made it, and the runner is built and run by different threads.
    Raises ConfigurationError if mlx-lm cannot compute what the configuration asks for.
    """
    check_mlx_computes(checkpoint)
    try:
        model = _load(checkpoint)
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise ConfigurationError(f"model {checkpoint.directory}: mlx-lm cannot load it: {error}") from error
    if checkpoint.family in GATED_DELTA_FAMILIES:  # mlx-lm adds 1 in the folder's own format, which rounds
        norms = [(name, weight.read(ALL)[0]) for name, weight in checkpoint.weights.items() if name.endswith(NORMS)]
        model.update(tree_unflatten([(name, mx.array(norm + 1)) for name, norm in norms]))
    kept = [(module, name, module[name]) for module in model.modules() for name in _IN_FLOAT32 if name in module]
    model.set_dtype(dtype)
    for module, name, array in kept:  # what transformers computes in float32: a choice of experts, how states decay
        module[name] = array.astype(mx.float32)
    model.eval()
    if yarn := read_yarn(checkpoint.config):
        num_rotated = checkpoint.latents.rope_dim if checkpoint.latents else checkpoint.head_dim
        _set_yarn(model, yarn, yarn.periods(rope_parameters(checkpoint.config)["rope_theta"], num_rotated))
    if checkpoint.latents:
        conform(model, checkpoint.latents, is_interleaved=checkpoint.config.get("rope_interleave", True))
    if checkpoint.family in MAMBA_FAMILIES:
        conform_mamba(model, checkpoint.config)
    fuse(model)
    # Module.parameters() leaves out private arrays such as the rotation's frequencies.
    mx.eval([list(module.values()) for module in model.modules()])
    return model


def _load(checkpoint: Checkpoint) -> Any:
    """Return the language model of a folder."""
    text = {**checkpoint.config, **_overrides(checkpoint)}
    if checkpoint.latents or not checkpoint.is_wrapped:
        return load_model(checkpoint.directory, model_config=text, get_model_classes=classes_of)[0]
    model, _ = load_model(checkpoint.directory, model_config={"text_config": text, "vocab_size": text["vocab_size"]})
    return model.language_model


def check_can_quantize_kv(checkpoint: Checkpoint) -> None:
    """Refuse a model whose K and V cannot be kept in 8 bits.

    Raises ConfigurationError if its attention takes plain K and V alone, or its heads have no groups that MLX knows.
    """
    if checkpoint.family in _PLAIN_KV_FAMILIES:
        raise ConfigurationError(
            f"kv_quantization: mlx-lm's attention of {checkpoint.family} takes plain K and V alone"
        )
    for spec in checkpoint.layer_specs():
        dims = (spec.key_head_dim, spec.value_head_dim)
        if len(sizes := {group_size_of(dim) for dim in dims}) > 1 or None in sizes:
            raise ConfigurationError(f"kv_quantization: heads of {dims} elements have no common groups of 32 or 64")


def _set_yarn(model: Any, yarn: Yarn, periods: list[float]) -> None:
    """Give every rotary embedding transformers' angles: mlx-lm reads no `attention_factor` and no `truncate`."""
    for layer in model.model.layers:
        rope = getattr(layer.self_attn, "rope", None)
        if isinstance(rope, YarnRoPE):
            rope._freqs, rope.mscale = mx.array(periods, mx.float32), yarn.attention_factor


def _overrides(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what mlx-lm does not read from a configuration written by transformers 5, or defaults differently.

    Most of its models ignore `rope_parameters`; `tie_word_embeddings` defaults to True; `layer_types` without full
    attention is refused, and not needed, since the runner's masks enforce the windows.
    """
    overrides = {
        "tie_word_embeddings": checkpoint.config.get("tie_word_embeddings", checkpoint.is_tied),
        "layer_types": None,
        "sliding_window": None,
        "num_experts": checkpoint.num_experts,
        "n_routed_experts": checkpoint.num_experts,
    }
    if checkpoint.family == "gemma4_text":
        return {**checkpoint.config, "tie_word_embeddings": overrides["tie_word_embeddings"]}
    parameters = rope_parameters(checkpoint.config)
    if "full_attention" in parameters:
        local = parameters["sliding_attention"]
        overrides |= {
            "rope_local_base_freq": local["rope_theta"],
            "sliding_window_pattern": _window_pattern(checkpoint),
        }
        parameters = dict(parameters["full_attention"])
    elif checkpoint.family == "gemma3_text":
        overrides["sliding_window_pattern"] = _window_pattern(checkpoint)
    theta = parameters.pop("rope_theta")
    if checkpoint.family in _PARTS_OF_HEADS:
        part = _PARTS_OF_HEADS[checkpoint.family]
        part = parameters.pop("partial_rotary_factor", checkpoint.config.get("partial_rotary_factor", part))
        rotary_dim = checkpoint.config.get("rotary_dim", int(part * checkpoint.head_dim))
        overrides |= {"partial_rotary_factor": part, "rotary_dim": rotary_dim, "shared_intermediate_size": 0}
    if checkpoint.family == "lfm2":
        attending = checkpoint.layer_specs()
        overrides["full_attn_idxs"] = [layer for layer, spec in enumerate(attending) if not spec.state]
        overrides["block_dim"] = checkpoint.config["hidden_size"]
    if checkpoint.family in MAMBA_FAMILIES:
        overrides |= arguments_of(checkpoint.config) | {"head_dim": checkpoint.head_dim}
    if checkpoint.family in ("ministral3", "glm_moe_dsa"):
        overrides["rope_parameters"] = parameters | {"rope_theta": theta}
    if checkpoint.latents:
        overrides |= {"topk_method": "noaux_tc", "moe_layer_freq": 1}
        if kinds := checkpoint.config.get("mlp_layer_types"):
            overrides["first_k_dense_replace"] = kinds.index("sparse")
    if yarn := read_yarn(checkpoint.config):
        parameters = {
            "mscale_all_dim": parameters.get("mscale_all_dim") or 0,
            "rope_type": "yarn",
            "factor": yarn.factor,
        }
    is_scaled = parameters.get("rope_type", "default") != "default"
    return overrides | {"rope_theta": theta, "rope_scaling": parameters if is_scaled else None}


def _window_pattern(checkpoint: Checkpoint) -> int:
    """Return `n` if every n-th layer, and no other, sees everything.

    Raises ConfigurationError if the layers do not alternate so; mlx-lm knows no other order.
    """
    windows = [spec.sliding_window_tokens for spec in checkpoint.layer_specs()]
    pattern = windows.index(0) + 1 if 0 in windows else len(windows) + 1
    if any(bool(window) != bool((layer + 1) % pattern) for layer, window in enumerate(windows)):
        raise ConfigurationError(
            f"model {checkpoint.directory}: layer_types: mlx-lm needs every n-th layer, and no other, to see everything"
        )
    return pattern
