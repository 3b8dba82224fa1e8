"""Which values of `model_type` are served, by which engines, and the language models within folders that hold more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from baton.engine.checkpoint.mamba import completed

ENGINES = ("torch", "mlx")
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "deepseek_v3": ENGINES,
    "deepseek_v32": ENGINES,
    "falcon_h1": ENGINES,
    "gemma2": ENGINES,
    "gemma3_text": ENGINES,
    "gemma4_text": ENGINES,
    "glm4_moe": ENGINES,
    "glm4_moe_lite": ENGINES,
    "glm_moe_dsa": ENGINES,
    "gpt_oss": ENGINES,
    "kimi_k2": ENGINES,
    "lfm2": ENGINES,
    "llama": ENGINES,
    "minimax_m2": ENGINES,
    "ministral3": ENGINES,
    "mistral": ENGINES,
    "mixtral": ENGINES,
    "nemotron_h": ENGINES,
    "phi3": ENGINES,
    "qwen2": ENGINES,
    "qwen2_moe": ENGINES,
    "qwen3": ENGINES,
    "qwen3_moe": ENGINES,
    "qwen3_5_moe_text": ENGINES,
    "qwen3_5_text": ENGINES,
    "qwen3_next": ENGINES,
    "smollm3": ENGINES,
}
"""Values of `model_type` whose equality with transformers is tested, and the engines of each."""

WRAPPERS: Mapping[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "kimi_k25": "kimi_k2",
    "mistral3": "mistral",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3",
}
"""Values of `model_type` of folders with towers for images besides, and the family of a text that names none."""
_FAMILIES_OF_TEXTS = {"qwen3_vl_text": "qwen3"}
"""Texts that, as long as nothing is an image, are computed as other families are."""

NOT_SERVED: Mapping[str, str] = {
    "deepseek_v4": "compressed K and V in a ring are carried by no engine; mlx-lm lacks it",
    "step3p5": "transformers lacks it",
}
"""Known values that no engine serves, and why."""

_OF_ALL_PARTS = ("quantization", "quantization_config", "tie_word_embeddings", "eos_token_id")
"""Keys that stand beside `text_config`, and hold for it."""
_OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""What a rotary embedding says of positions in images."""
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262_208,
    },
    "gemma4_text": {
        "attention_k_eq_v": False,
        "enable_moe_block": False,
        "final_logit_softcapping": None,
        "global_head_dim": 512,
        "head_dim": 256,
        "hidden_size_per_layer_input": 256,
        "num_key_value_heads": 4,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 262_144,
    },
    "nemotron_h": {"head_dim": 128, "time_step_min": 0.001},
}
"""What `text_config` leaves out in folders of the hub, as transformers completes it."""
_GLOBAL = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
"""What Gemma 4's folders call sizes of layers that see everything, by the names in `per_layer_config`."""
_NAMES_OF_TENSORS: Sequence[tuple[str, str]] = (
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
    ("language_model.lm_head", "lm_head"),
    ("lm_head", "lm_head"),
)
"""How names of the language model begin in a folder that has more, and in one of its own."""

_KEYS_OR_VALUES = re.compile(r"model\.layers\.(?P<layer>\d+)\.self_attn\.[kv]_(proj|norm)\.")


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration of a folder's language model as a folder of its own has it, completed."""
    told, shared = config.get("text_config"), dict[str, Any]()
    if config.get("model_type") in WRAPPERS and isinstance(told, Mapping):
        shared = {key: config[key] for key in _OF_ALL_PARTS if config.get(key) is not None}
        if isinstance(packing := shared.get("quantization"), Mapping):
            shared["quantization"] = {text_name(key) or key: value for key, value in packing.items()}
        family: str = told.get("model_type", WRAPPERS[config["model_type"]])
        shared["model_type"] = _FAMILIES_OF_TEXTS.get(family, family)
    else:
        told = config
    text = {**told, **shared}
    text = completed({**_DEFAULTS.get(str(text.get("model_type")), {}), **text})
    if isinstance(of_layers := text.pop("per_layer_config", None), Mapping):
        for layer in of_layers.values():
            text |= {_GLOBAL[key]: value for key, value in layer.items() if key in _GLOBAL}
    for field in ("rope_parameters", "rope_scaling"):
        if isinstance(rope := text.get(field), Mapping):
            text[field] = {key: value for key, value in rope.items() if key not in _OF_IMAGES}
    return text


def text_name(name: str) -> str:
    """Return what a tensor is called in a folder of the language model's own; empty: it is a tower's."""
    return next((own + name.removeprefix(told) for told, own in _NAMES_OF_TENSORS if name.startswith(told)), "")


def is_computed_with(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a tensor is used: layers that read K and V of others have projections in some folders."""
    num_own = int(config.get("num_hidden_layers") or 0) - int(config.get("num_kv_shared_layers") or 0)
    match = _KEYS_OR_VALUES.match(name)
    return match is None or int(match["layer"]) < num_own
