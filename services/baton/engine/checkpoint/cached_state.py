"""What each layer of a model caches, and how many elements its attention multiplies, told by config.json alone.

Every layer has heads and widths of K and V of its own: pools, frames, blocks in other tiers and prices go by the
`LayerSpec` of the layer.

Of a layer with latents (MLA) `keys` are the latents, after their norm, and `values` the part of keys that is rotated,
in halves: one head of each, of which a pass makes keys and values of all heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from baton.capacity.cost import AttentionElements
from baton.engine.checkpoint.mamba import MAMBA_FAMILIES, check_mamba
from baton.engine.checkpoint.recurrent_state import HYBRID_FAMILIES, STATE_KINDS, kind_of, state_of
from baton.engine.checkpoint.rope import rope_parameters
from baton.errors import ConfigurationError
from baton.kv.kv_format import LayerSpec

_SWITCHED_WINDOW_FAMILIES = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3")
"""Those whose `sliding_window` counts only together with `use_sliding_window`."""
_LAYER_KINDS = ("full_attention", "sliding_attention")
"""Values of `layer_types` whose caches can be carried; others keep a state that is no K and V per position."""
_KINDS_WITHOUT_CACHE = ("mlp", "moe")
INDEXED_FAMILIES = ("deepseek_v32", "glm_moe_dsa")
"""Those that choose by an index which keys a query sees; they cache the index's key behind the rotated part of keys."""
LATENT_FAMILIES = ("deepseek_v3", "glm4_moe_lite", "kimi_k2", *INDEXED_FAMILIES)
"""Those that cache latents."""
_LATENT_SIZES = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_INDEX_SIZES = ("index_head_dim", "index_n_heads", "index_topk")
_EXPERT_SIZES = ("n_routed_experts", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group")
_LATENT_VARIANTS: Mapping[str, tuple[object, ...]] = {
    "topk_method": ("noaux_tc",),
    "scoring_func": ("sigmoid",),
    "moe_layer_freq": (1,),
    "partial_rotary_factor": (1.0,),
    "rope_type": ("default", "yarn"),
    "index_topk_freq": (1,),
    "index_topk_pattern": (),
}
"""Fields of families with latents that may be missing, and the values whose equality with transformers is tested."""
_PASS_TOKENS = 512  # of a prompt, by default


class Latents(NamedTuple):
    """Elements of a latent, of the rotated part of keys, which heads share, of what each head makes, of an index's key.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
    """

    rank: int
    rope_dim: int
    plain_dim: int
    value_dim: int
    index_dim: int = 0


def read_latents(config: Mapping[str, Any]) -> Latents | None:
    """Return the widths; None: the model has keys and values."""
    is_indexed, is_latent = (config["model_type"] in families for families in (INDEXED_FAMILIES, LATENT_FAMILIES))
    keys = (*_LATENT_SIZES, *_INDEX_SIZES[:is_indexed])
    return Latents(*(int(config[key]) for key in keys)) if is_latent else None


def layer_specs(config: Mapping[str, Any]) -> tuple[LayerSpec, ...]:
    """Return the caches of all layers, in order of depth.

    The last layers of Gemma 4 read those of others; layers of Nemotron-H may have none, those of Falcon-H1 have two.
    """
    num_layers = int(config["num_hidden_layers"]) - int(config.get("num_kv_shared_layers") or 0)
    return tuple(spec for layer in range(num_layers) for spec in _specs_of(config, layer))


def head_dim(config: Mapping[str, Any]) -> int:
    """Return the elements of one attention head, as most layers have it."""
    if latents := read_latents(config):
        return latents.plain_dim + latents.rope_dim
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def attention_elements(config: Mapping[str, Any]) -> AttentionElements:
    """Return what one query and one key multiply over all heads and layers.

    Each pass over a prompt makes heads of the latents before it anew; a step multiplies by the latents themselves.
    """
    num_heads, specs, latents = int(config["num_attention_heads"]), layer_specs(config), read_latents(config)
    elements = num_heads * sum(spec.key_head_dim + spec.value_head_dim for spec in specs)
    num_shared = int(config.get("num_kv_shared_layers") or 0)
    elements += elements * num_shared // len(specs)  # of layers that read others' caches
    if latents is None:
        return AttentionElements(elements, elements)
    made = latents.plain_dim + latents.value_dim
    prompt = made + latents.rope_dim + latents.rank * made // _PASS_TOKENS
    index = len(specs) * latents.index_dim * int(config.get("index_n_heads") or 0)
    step = elements + num_heads * len(specs) * (latents.rank - latents.index_dim)
    return AttentionElements(num_heads * len(specs) * prompt + index, step + index)


def check_layers(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse what would be taken for an ordinary layer with K and V of its own.

    Raises:
        ConfigurationError: Naming the first layer of a kind whose state cannot be carried as K and V, or a field by
            which a family with latents would be computed otherwise.
    """
    if config["model_type"] in LATENT_FAMILIES:
        _check_latents(directory, config)
    if config["model_type"] in MAMBA_FAMILIES:
        check_mamba(directory, config)
    for layer, kind in enumerate(config.get("layer_types") or ()):
        is_own = kind in STATE_KINDS and config["model_type"] in HYBRID_FAMILIES
        is_own |= kind == "indexed_attention" and config["model_type"] in INDEXED_FAMILIES
        if kind not in _LAYER_KINDS and not is_own:
            expected = " or ".join(_LAYER_KINDS)
            raise ConfigurationError(f"model {directory}: layer_types[{layer}]: expected {expected}, got {kind!r}")
    if config.get("use_bidirectional_attention") in (True, "all"):
        problem = "tokens that see later ones have no cache; expected false, or vision"
        raise ConfigurationError(f"model {directory}: use_bidirectional_attention: {problem}")
    num_shared = int(config.get("num_kv_shared_layers") or 0)
    if num_shared and config["model_type"] != "gemma4_text":
        problem = f"{num_shared} layers share the KV of others, which is not served"
        raise ConfigurationError(f"model {directory}: num_kv_shared_layers: {problem}")


def _check_latents(directory: Path, config: Mapping[str, Any]) -> None:
    told = {"rope_type": "default", **config, **rope_parameters(config)}
    is_indexed = config["model_type"] in INDEXED_FAMILIES
    if "shared" in told.get("indexer_types", ()):
        raise ConfigurationError(f"model {directory}: indexer_types: expected full in all layers, mlx-lm shares none")
    for field in (*_LATENT_SIZES, *_EXPERT_SIZES, *_INDEX_SIZES[: 3 * is_indexed], *_LATENT_VARIANTS):
        value, served = told.get(field), _LATENT_VARIANTS.get(field)
        if not (isinstance(value, int) and value > 0 if served is None else value is None or value in served):
            expected = " or ".join(map(str, served or ["a whole number above 0"]))
            problem = f"{field}: {config['model_type']}: expected {expected}, got {value!r}"
            raise ConfigurationError(f"model {directory}: {problem}")


def _specs_of(config: Mapping[str, Any], layer: int) -> tuple[LayerSpec, ...]:
    kind = kind_of(config, layer) if config["model_type"] in HYBRID_FAMILIES else ""
    if kind in _KINDS_WITHOUT_CACHE:
        return ()
    state = state_of(config, layer)
    of_state = (LayerSpec(0, 0, 0, state=state),) if state else ()
    return of_state if state and kind != "hybrid" else (*of_state, _kv_of(config, layer))


def _kv_of(config: Mapping[str, Any], layer: int) -> LayerSpec:
    if latents := read_latents(config):
        return LayerSpec(1, latents.rank, latents.rope_dim + latents.index_dim)
    num_kv_heads = int(config.get("num_key_value_heads") or config["num_attention_heads"])
    width, window = head_dim(config), _window_of(config, layer)
    if config["model_type"] == "gemma4_text" and not window:
        width = int(config["global_head_dim"])
        num_global = config.get("num_global_key_value_heads") if config["attention_k_eq_v"] else None
        num_kv_heads = int(num_global or num_kv_heads)
    return LayerSpec(num_kv_heads, width, width, window)


def _window_of(config: Mapping[str, Any], layer: int) -> int:
    window = int(config.get("sliding_window") or 0)
    family, layer_types = config["model_type"], config.get("layer_types")
    if layer_types:
        return window if layer_types[layer] == "sliding_attention" else 0
    if family == "gemma2":
        return 0 if layer % 2 else window
    if family == "gemma3_text":
        return window if (layer + 1) % int(config.get("sliding_window_pattern") or 6) else 0
    if family in _SWITCHED_WINDOW_FAMILIES:
        first = int(config.get("max_window_layers") or 0)
        return window if config.get("use_sliding_window") and layer >= first else 0
    return window
