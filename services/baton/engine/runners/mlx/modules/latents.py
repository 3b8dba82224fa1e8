"""Models with latents (MLA) of mlx-lm, made to compute what transformers does, and to cache keys in the same order.

mlx-lm rotates neighbouring elements, and so would cache them. The rows of the projections that make those elements are
put in order once, so that the cache has halves as everybody's has: scores are the same sums in another order.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.deepseek_v32 import DeepseekV32Attention
from mlx_lm.utils import _get_classes

from baton.engine.checkpoint.cached_state import LATENT_FAMILIES, Latents
from baton.engine.checkpoint.families import text_name
from baton.engine.checkpoint.model_folder import is_beyond

_NORM_EPSILON = 1e-6  # of the norms of latents, which transformers' families do not take from the configuration


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
    """Make a loaded model compute and cache what transformers does; the hub's weights are interleaved, in pairs."""
    for layer in model.model.layers:
        attention = layer.self_attn
        if is_interleaved:
            queries = attention.q_proj if attention.q_lora_rank is None else attention.q_b_proj
            _put_in_halves(queries, latents.plain_dim, latents.rope_dim)
            _put_in_halves(attention.kv_a_proj_with_mqa, latents.rank, latents.rope_dim)
        attention.rope.traditional = False
        if latents.index_dim:
            attention.__class__, index = IndexedAttention, attention.indexer
            for module in (index.wq_b, index.wk, index.k_norm) if index.rope.traditional else ():
                _put_in_halves(module, 0, latents.rope_dim, latents.index_dim - latents.rope_dim)
            index.rope, index.k_norm.eps = attention.rope, _NORM_EPSILON
        for name in {"q_a_layernorm", "kv_a_layernorm"} & attention.keys():
            attention[name].eps = _NORM_EPSILON
        if "gate" in layer.mlp:
            layer.mlp.gate = Router(layer.mlp.gate)


class IndexedAttention(DeepseekV32Attention):  # type: ignore[misc]
    """Attention to the keys that an index chooses, whose own keys are cached behind the rotated part of keys."""

    def __call__(self, hidden: mx.array, mask: mx.array | None, cache: Any) -> mx.array:
        """Return the output for [num_rows, num_tokens, hidden_size]."""
        num_rows, num_tokens, _ = hidden.shape
        index, offset, rank = self.indexer, cache.offset, self.kv_lora_rank
        narrow = self.q_a_layernorm(self.q_a_proj(hidden))
        queries = self.q_b_proj(narrow).reshape(num_rows, num_tokens, self.num_heads, -1).swapaxes(1, 2)
        plain, turned = mx.split(queries, [self.qk_nope_head_dim], axis=-1)
        latents, keys = mx.split(self.kv_a_proj_with_mqa(hidden)[:, None], [rank], axis=-1)
        index_keys = index.rope(index.k_norm(index.wk(hidden))[:, None], offset=offset)
        others = mx.concatenate([self.rope(keys, offset), index_keys], axis=-1)
        latents, others = cache.update_and_fetch(self.kv_a_layernorm(latents), others)
        keys, index_keys = mx.split(others, [self.qk_rope_head_dim], axis=-1)
        if latents.shape[2] > index.index_topk:
            query = index.wq_b(narrow).reshape(num_rows, num_tokens, index.n_heads, -1).swapaxes(1, 2)
            scores = mx.maximum(index.rope(query, offset=offset) @ index_keys.swapaxes(-1, -2), 0)
            weights = index.weights_proj(hidden).swapaxes(-1, -2)[..., None]
            scores = (scores * weights).sum(axis=1, keepdims=True)
            scores = scores if mask is None else mx.where(mask, scores, -mx.inf)
            chosen = mx.argpartition(scores, kth=-index.index_topk, axis=-1)[..., -index.index_topk :]
            seen = mx.put_along_axis(mx.zeros(scores.shape, mx.bool_), chosen, mx.array(True), axis=-1)
            mask = seen if mask is None else seen & mask
        scores = (self.rope(turned, offset) * self.scale) @ keys.swapaxes(-1, -2)
        if mask is not None:
            scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
        if num_tokens == 1:  # the latents are keys and values of all heads
            attended = mx.fast.scaled_dot_product_attention(
                self.embed_q(plain), latents, latents, scale=self.scale, mask=scores
            )
            attended = self.unembed_out(attended)
        else:
            keys, values = self.embed_q(latents, transpose=False), self.unembed_out(latents)
            attended = mx.fast.scaled_dot_product_attention(plain, keys, values, scale=self.scale, mask=scores)
        output: mx.array = self.o_proj(attended.swapaxes(1, 2).reshape(num_rows, num_tokens, -1))
        return output


class Router(nn.Module):  # type: ignore[misc] # mlx has no types for it
    """Chooses experts by scores in float32, groups first, by the sum of their best two (arXiv 2412.19437, 2.1.2).

    mlx-lm rounds the logits, and gives experts of other groups a score of 0, not the lowest where a bias is negative.
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


def _put_in_halves(module: Any, num_before: int, num_rotated: int, num_after: int = 0) -> None:
    """Order what is rotated of each head's outputs: the first of each pair, then the second."""
    rows = np.arange(module.weight.shape[0]).reshape(-1, num_before + num_rotated + num_after)
    begin, end = num_before, num_before + num_rotated
    rows[:, begin:end] = np.concatenate([rows[:, begin:end:2], rows[:, begin + 1 : end : 2]], axis=1)
    for name in module:
        module[name] = module[name][mx.array(rows.reshape(-1))]
