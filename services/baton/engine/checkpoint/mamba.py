"""Families with Mamba 2: what their folders say of it, in whichever form, and what mlx-lm's folders hold instead.

A layer of Nemotron-H is of one kind: Mamba, attention, or one that caches nothing. A layer of Falcon-H1 has Mamba and
attention side by side, two caches. Falcon-H1 multiplies activations by constants; of folders that mlx-lm writes, the
weights are multiplied by most of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from baton.errors import ConfigurationError
from baton.kv.kv_format import StateTensor

MAMBA_FAMILIES = ("falcon_h1", "nemotron_h")
NO_MULTIPLIERS: Mapping[str, Any] = {
    **dict.fromkeys(("attention_out_multiplier", "embedding_multiplier", "lm_head_multiplier"), 1.0),
    **dict.fromkeys(("ssm_in_multiplier", "ssm_out_multiplier"), 1.0),
    "mlp_multipliers": [1.0] * 2,
    "ssm_multipliers": [1.0] * 5,
}
"""What a configuration of Falcon-H1 says whose weights are multiplied."""
_NOT_MULTIPLIED = {"attention_in_multiplier": 1.0} | dict.fromkeys(
    ("attention_bias", "mamba_proj_bias", "mlp_bias", "projectors_bias"), False
)
"""What mlx-lm leaves out or multiplies in part, and the values with which that is right."""
_KINDS = ("linear_attention", "full_attention", "mlp", "moe")
_OTHER_NAMES = dict(zip(("M", "*", "-", "E", "mamba", "attention"), (*_KINDS, *_KINDS[:2]), strict=True))
_NAMES_OF_KINDS = ("layers_block_type", "layer_types", "hybrid_override_pattern")
_OF_NO_LAYER = ("mtp_hybrid_override_pattern", "mtp_layers_block_type", "time_step_limit")
"""What transformers reads for layers that predict ahead alone, or not at all: least steps are `time_step_min`."""
_VARIANTS: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "falcon_h1": {"hidden_act": ("silu",), "time_step_limit": ([0.0, float("inf")],)},
    "nemotron_h": {"attention_bias": (False,), "mamba_hidden_act": ("silu",), "mlp_hidden_act": ("relu2",)},
}
"""Fields that may be missing, and the values whose equality with transformers is tested."""


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the kinds of layers and limits in one form, whichever it has."""
    text = dict(config)
    if text.get("model_type") == "nemotron_h":
        told = next((text[name] for name in _NAMES_OF_KINDS if text.get(name)), ())
        kinds = [_OTHER_NAMES.get(kind, kind) for kind in told]
        text = {key: value for key, value in text.items() if key not in (*_NAMES_OF_KINDS, *_OF_NO_LAYER)}
        text |= {"layers_block_type": kinds, "num_hidden_layers": len(kinds)}
    elif isinstance(limits := text.get("time_step_limit"), list):  # transformers 5 has a word for what JSON has not
        text["time_step_limit"] = [float(each["__float__"] if isinstance(each, dict) else each) for each in limits]
    return text


def check_mamba(directory: Path, config: Mapping[str, Any]) -> None:
    """Raise ConfigurationError, naming the field, for what would be computed otherwise than transformers does."""
    kinds = {f"layers_block_type[{layer}]": kind for layer, kind in enumerate(config.get("layers_block_type", ()))}
    _check(directory, {**config, **kinds}, {**_VARIANTS[config["model_type"]], **dict.fromkeys(kinds, _KINDS)})


def multiplied(directory: Path, config: Mapping[str, Any], *, is_tied: bool) -> dict[str, Any]:
    """Return the configuration of a Falcon-H1 in mlx-lm's layout as it holds for the weights that are there.

    Raises ConfigurationError, naming the field, if mlx-lm has multiplied what belongs together unlike.
    """
    _check(directory, config, {field: (value,) for field, value in _NOT_MULTIPLIED.items()})
    head = config.get("lm_head_multiplier", 1.0) / config.get("embedding_multiplier", 1.0) if is_tied else 1.0
    return {**config, **NO_MULTIPLIERS, "lm_head_multiplier": head}


def mamba_state(config: Mapping[str, Any]) -> tuple[StateTensor, ...]:
    """Return what a layer with Mamba keeps of a sequence.

    Source: Mamba 2 (arXiv 2405.21060), section 8: heads share the inputs B and C of their group.
    """
    if config["model_type"] == "nemotron_h":
        names = ("mamba_num_heads", "n_groups", "ssm_state_size", "conv_kernel")
    else:
        names = ("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    num_heads, num_groups, num_states, num_taps = (int(config[name]) for name in names)
    head_dim = int(config.get("mamba_head_dim") or inner_size(config) // num_heads)
    num_channels = num_heads * head_dim + 2 * num_groups * num_states
    return (
        StateTensor("conv", (num_taps - 1, num_channels)),
        StateTensor("recurrent", (num_heads, head_dim, num_states)),
    )


def inner_size(config: Mapping[str, Any]) -> int:
    """Return the channels of all heads of Mamba in a Falcon-H1."""
    return int(config.get("mamba_d_ssm") or config.get("mamba_expand", 2) * config["hidden_size"])


def _check(directory: Path, config: Mapping[str, Any], expected: Mapping[str, tuple[object, ...]]) -> None:
    for field, served in expected.items():
        if (value := config.get(field)) is not None and value not in served:
            told = f"{config['model_type']}: expected {' or '.join(map(str, served))}, got {value!r}"
            raise ConfigurationError(f"model {directory}: {field}: {told}")
