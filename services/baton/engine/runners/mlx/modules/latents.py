"""Models with latents (MLA) of mlx-lm, made to compute what transformers does, and to cache keys in the same order.

mlx-lm rotates neighbouring elements, and so would cache them. The rows of the projections that make those elements are
put in order once, so that the cache has halves as everybody's has: scores are the same sums in another order.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.utils import _get_classes

from baton.engine.checkpoint.cached_state import LATENT_FAMILIES, Latents
from baton.engine.checkpoint.families import text_name
from baton.engine.checkpoint.model_folder import is_beyond

_NORM_EPSILON = 1e-6
"""Of the norms of latents: transformers' families do not take it from the configuration."""


def classes_of(config: dict[str, Any]) -> tuple[Any, Any]:
    """Return mlx-lm's model and arguments; one with latents takes no layer after the last, and packs nothing anew."""
    model_class, args_class = _get_classes(config)
    if config["model_type"] not in LATENT_FAMILIES:
        return model_class, args_class

    def sanitize(self: Any, weights: dict[str, mx.array]) -> Any:
        if any(name.startswith("language_model.") for name in weights):  # beside a tower for images
            weights = {own: each for name, each in weights.items() if (own := text_name(name))}
        weights = {name: each for name, each in weights.items() if not is_beyond(name, self.args.num_hidden_layers)}
        for module in [name.removesuffix(".scales") for name in weights if name.endswith("kv_b_proj.scales")]:
            words, scales, biases = (weights.pop(f"{module}.{part}") for part in ("weight", "scales", "biases"))
            wide, rank = [scales.astype(mx.float32), biases.astype(mx.float32)], self.args.kv_lora_rank
            group_size, bits = rank // scales.shape[-1], words.shape[-1] * 32 // rank
            weights[f"{module}.weight"] = mx.dequantize(words, wide[0], wide[1], group_size=group_size, bits=bits)
        return model_class.sanitize(self, weights)

    return type(model_class.__name__, (model_class,), {"sanitize": sanitize}), args_class


def conform(model: Any, latents: Latents, *, is_interleaved: bool) -> None:
    """Make a loaded model compute and cache what transformers does.

    `is_interleaved`: the weights make neighbouring elements that are rotated together, as the hub's do.
    """
    for layer in model.model.layers:
        attention = layer.self_attn
        if is_interleaved:
            queries = attention.q_proj if attention.q_lora_rank is None else attention.q_b_proj
            _put_in_halves(queries, latents.plain_dim, latents.rope_dim)
            _put_in_halves(attention.kv_a_proj_with_mqa, latents.rank, latents.rope_dim)
        attention.rope.traditional = False
        for name in {"q_a_layernorm", "kv_a_layernorm"} & attention.keys():
            attention[name].eps = _NORM_EPSILON
        if "gate" in layer.mlp:
            layer.mlp.gate = Router(layer.mlp.gate)


class Router(nn.Module):  # type: ignore[misc] # mlx has no types for it
    """Chooses experts by scores in float32: groups first, by the sum of their best two.

    mlx-lm rounds the logits to the dtype of activations, and gives experts outside of the groups a score of 0, which is
    not the lowest where a bias is negative.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.1.2.
    """

    def __init__(self, gate: Any) -> None:
        super().__init__()
        self.weight, self.e_score_correction_bias = gate.weight, gate.e_score_correction_bias
        self._gate = gate

    def __call__(self, hidden: mx.array) -> tuple[mx.array, mx.array]:
        """Return the chosen experts of [..., hidden_size] and their weights: [..., number chosen] each."""
        gate = self._gate
        scores = mx.sigmoid(hidden.astype(mx.float32) @ self.weight.astype(mx.float32).T)
        biased = scores + self.e_score_correction_bias
        if num_dropped := gate.n_group - gate.topk_group:
            groups = mx.unflatten(biased, -1, (gate.n_group, -1))
            best = mx.topk(groups, 2, axis=-1).sum(axis=-1, keepdims=True)
            dropped = mx.argpartition(best, kth=num_dropped - 1, axis=-2)[..., :num_dropped, :]
            biased = mx.flatten(mx.put_along_axis(groups, dropped, mx.array(-mx.inf), axis=-2), -2, -1)
        chosen = mx.argpartition(-biased, kth=gate.top_k - 1, axis=-1)[..., : gate.top_k]
        weights = mx.take_along_axis(scores, chosen, axis=-1)
        if gate.norm_topk_prob:
            weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
        return chosen, weights * gate.routed_scaling_factor


def _put_in_halves(projection: Any, num_before: int, num_rotated: int) -> None:
    """Order outputs that are rotated, of each head the last ones: the first of each pair, then the second."""
    rows = np.arange(projection.weight.shape[0]).reshape(-1, num_before + num_rotated)
    order = np.concatenate([rows[:, :num_before], rows[:, num_before::2], rows[:, num_before + 1 :: 2]], axis=1)
    for name in projection:
        projection[name] = projection[name][mx.array(order.reshape(-1))]
