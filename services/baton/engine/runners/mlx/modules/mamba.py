"""Models with Mamba 2 of mlx-lm, made to compute what transformers does, and cut where caches are.

A layer of a runner has one cache. So a layer of Falcon-H1 is two: one with Mamba, one with the rest; and layers of
Nemotron-H without a cache belong to the one before them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu

from baton.engine.checkpoint.mamba import NO_MULTIPLIERS, inner_size
from baton.engine.runners.mlx.kv_cache.positions import Mask
from baton.engine.runners.mlx.modules.latents import Router

_CACHING = ("M", "*")
"""What mlx-lm calls layers with Mamba and with attention."""


class Scaled(nn.Module):  # type: ignore[misc] # mlx has no types for it
    """A projection between constants: its inputs and its outputs are multiplied."""

    def __init__(self, projection: Any, outputs: float | mx.array, inputs: float = 1.0) -> None:
        super().__init__()
        self.projection = projection
        self._outputs, self._inputs = outputs, inputs

    def __call__(self, hidden: mx.array) -> mx.array:
        """Return the outputs for [..., num_inputs], in the same number format."""
        inputs = hidden if self._inputs == 1 else hidden * self._inputs
        scaled: mx.array = self.projection(inputs) * self._outputs
        return scaled.astype(hidden.dtype)


class GatedNorm(nn.Module):  # type: ignore[misc]
    """Norm of the channels of each group, gated before or after; mlx-lm's has no groups."""

    def __init__(self, norm: Any, num_groups: int) -> None:
        super().__init__()
        self.weight = norm.weight
        self._epsilon, self._is_first, self._num_groups = norm.variance_epsilon, norm.norm_before_gate, num_groups

    def __call__(self, hidden: mx.array, gate: mx.array) -> mx.array:
        """Return the output for [..., num_channels] and their gates."""
        hidden = hidden if self._is_first else swiglu(gate, hidden)
        groups = mx.fast.rms_norm(mx.unflatten(hidden, -1, (self._num_groups, -1)), None, self._epsilon)
        normed: mx.array = groups.flatten(-2) * self.weight
        output: mx.array = swiglu(gate, normed) if self._is_first else normed
        return output


def arguments_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what mlx-lm does not read from a configuration, or means otherwise."""
    if config["model_type"] == "nemotron_h":
        limits = (config["time_step_min"], float("inf"))
        return {"time_step_limit": limits, "attention_bias": False, "mamba_proj_bias": config.get("use_bias", False)}
    sizes = {"mamba_d_ssm": inner_size(config), "mamba_d_head": inner_size(config) // config["mamba_n_heads"]}
    # mlx-lm would multiply weights in the folder's own format, which rounds.
    return {**NO_MULTIPLIERS, "attention_in_multiplier": 1.0, **sizes}


def conform_mamba(model: Any, config: Mapping[str, Any]) -> None:
    """Make a loaded model compute what transformers does."""
    if model.model_type == "falcon_h1":
        _multiply(model, config)
    for layer in model.layers if model.model_type == "nemotron_h" else ():
        if "gate" in layer.mixer:
            layer.mixer.gate = Router(layer.mixer.gate)


def halves_of(layers: Sequence[Any]) -> list[Any]:
    """Return layers of Falcon-H1 cut in two, in turn; each takes hidden states, a mask and a cache."""
    return [partial(half, layer) for layer in layers for half in (_mamba_half, _attention_half)]


def grouped(layers: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return layers of Nemotron-H together with those without a cache around them, and what is behind the last."""
    groups: list[list[Any]] = [[]]
    has_cache = False
    for layer in layers:
        if layer.block_type in _CACHING and has_cache:
            groups.append([])
        has_cache |= layer.block_type in _CACHING
        groups[-1].append(layer)
    end = max(place for place, layer in enumerate(groups[-1]) if layer.block_type in _CACHING) + 1
    return [partial(_together, group) for group in (*groups[:-1], groups[-1][:end])], groups[-1][end:]


def _multiply(model: Any, config: Mapping[str, Any]) -> None:
    """Have a Falcon-H1, whose weights are as its folder has them, multiply activations as its configuration says.

    mlx-lm alone leaves the multiplier of keys out: logits differ by a tenth of the largest.
    """
    told = {"mlp_multipliers": (1.0, 1.0), "ssm_multipliers": (1.0,) * 5, **config}

    def value(name: str) -> float:
        return float(told.get(f"{name}_multiplier", 1.0))

    model.args.embedding_multiplier, model.args.lm_head_multiplier = value("embedding"), value("lm_head")
    num_states = int(told["mamba_n_groups"]) * int(told["mamba_d_state"])
    sizes = (*[inner_size(told)] * 2, num_states, num_states, int(told["mamba_n_heads"]))
    of_mamba = mx.concatenate([mx.full(size, part) for size, part in zip(sizes, told["ssm_multipliers"], strict=True)])
    gate, down = told["mlp_multipliers"]
    for layer in model.layers:
        for module, name, outputs, inputs in (
            (layer.mamba, "in_proj", 1.0 if set(told["ssm_multipliers"]) == {1.0} else of_mamba, value("ssm_in")),
            (layer.mamba, "out_proj", value("ssm_out"), 1.0),
            (layer.self_attn, "q_proj", 1.0, value("attention_in")),
            (layer.self_attn, "k_proj", value("key"), value("attention_in")),
            (layer.self_attn, "v_proj", 1.0, value("attention_in")),
            (layer.self_attn, "o_proj", value("attention_out"), 1.0),
            (layer.feed_forward, "gate_proj", gate, 1.0),
            (layer.feed_forward, "down_proj", down, 1.0),
        ):
            if isinstance(outputs, mx.array) or (outputs, inputs) != (1.0, 1.0):
                module[name] = Scaled(module[name], outputs, inputs)
        if "norm" in layer.mamba:
            layer.mamba.norm = GatedNorm(layer.mamba.norm, layer.mamba.n_groups)


def _mamba_half(layer: Any, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:  # noqa: ARG001
    """Return [..., 2 * hidden_size]: what Mamba has been added to, and what attention takes."""
    normed = layer.input_layernorm(hidden)
    return mx.concatenate([hidden + layer.mamba(normed, cache=cache), normed], axis=-1)


def _attention_half(layer: Any, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
    """Take what `_mamba_half` returns."""
    mixed, normed = mx.split(hidden, 2, axis=-1)
    mixed = mixed + layer.self_attn(normed, mask=mask, cache=cache)
    output: mx.array = mixed + layer.feed_forward(layer.pre_ff_layernorm(mixed))
    return output


def _together(layers: Sequence[Any], hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
    """Compute layers of which one has a cache."""
    for layer in layers:
        hidden = layer(hidden, mask=mask, cache=cache)
    return hidden
