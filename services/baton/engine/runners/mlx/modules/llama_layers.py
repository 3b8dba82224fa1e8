"""Attention and MLP of the dense Llama-like families with fewer and larger products than mlx-lm's modules.

Queries, keys and values come from one product, gate and up from another, and the query heads that share a K and V head
read it together. What is computed is the same, to rounding; every other family keeps mlx-lm's modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, mixtral, qwen2, qwen3, qwen3_moe
from mlx_lm.models.base import scaled_dot_product_attention

from baton.engine.runners.mlx.kv_cache.packed import PackedCache
from baton.engine.runners.mlx.kv_cache.positions import Mask

_ATTENTIONS = (llama.Attention, mixtral.MixtralAttention, qwen2.Attention, qwen3.Attention, qwen3_moe.Attention)
_MLPS = (llama.MLP, qwen2.MLP, qwen3.MLP, qwen3_moe.MLP)
_MAX_FOLDED_HEADS = 8
"""Queries that MLX's kernel for few of them takes."""


class FusedAttention(nn.Module):  # type: ignore[misc] # mlx has no types for it
    """Attention with rotated positions, and queries and keys normalised where the model does that."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.qkv_proj = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self.o_proj = attention.o_proj
        self.rope = attention.rope
        self.scale = attention.scale
        self.num_heads = getattr(attention, "n_heads", None) or attention.num_heads
        self.num_kv_heads = getattr(attention, "n_kv_heads", None) or attention.num_key_value_heads
        if "q_norm" in attention:
            self.q_norm, self.k_norm = attention.q_norm, attention.k_norm

    def __call__(self, hidden: mx.array, mask: Mask, cache: Any) -> mx.array:
        """Return the output for [num_rows, num_tokens, hidden_size]."""
        num_rows, num_tokens, _ = hidden.shape
        heads = self.qkv_proj(hidden).reshape(num_rows, num_tokens, self.num_heads + 2 * self.num_kv_heads, -1)
        heads = heads.transpose(0, 2, 1, 3)
        if isinstance(cache, PackedCache):
            attended = self._attend_parts(heads, cache)
        else:
            queries, keys = self._rotated(heads, cache.offset)
            keys, values = cache.update_and_fetch(keys, heads[:, -self.num_kv_heads :])
            attended = self._attend(queries, keys, values, cache, mask)
        output: mx.array = self.o_proj(attended.transpose(0, 2, 1, 3).reshape(num_rows, num_tokens, -1))
        return output

    def _rotated(self, heads: mx.array, offset: int | mx.array) -> tuple[mx.array, mx.array]:
        """Return queries and keys with their positions."""
        num_heads, num_kv_heads = self.num_heads, self.num_kv_heads
        if "q_norm" in self:
            queries = self.rope(self.q_norm(heads[:, :num_heads]), offset=offset)
            keys = self.k_norm(heads[:, num_heads : num_heads + num_kv_heads])
            return queries, self.rope(keys, offset=offset)
        rotated = self.rope(heads[:, : num_heads + num_kv_heads], offset=offset)
        return rotated[:, :num_heads], rotated[:, num_heads:]

    def _attend_parts(self, heads: mx.array, cache: PackedCache) -> mx.array:
        rotated = [self._rotated(heads[:, :, part.begin : part.end], part.offset) for part in cache.parts]
        cache.write(mx.concatenate([keys for _, keys in rotated], axis=2), heads[:, -self.num_kv_heads :])
        attended = [
            self._attend(queries, *cache.read(part), cache, cache.mask(part))
            for part, (queries, _) in zip(cache.parts, rotated, strict=True)
        ]
        return mx.concatenate(attended, axis=2)

    def _attend(self, queries: mx.array, keys: Any, values: Any, cache: Any, mask: Mask) -> mx.array:
        num_rows, num_heads, num_tokens, head_dim = queries.shape
        group = num_heads // self.num_kv_heads
        can_fold = num_tokens == 1 and group <= _MAX_FOLDED_HEADS
        if can_fold:
            queries = queries.reshape(num_rows, self.num_kv_heads, group, head_dim)
        attended: mx.array = scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=self.scale, mask=mask
        )
        return attended.reshape(num_rows, num_heads, 1, -1) if can_fold else attended


class FusedMlp(nn.Module):  # type: ignore[misc]
    """Gate and up in one product."""

    def __init__(self, mlp: Any) -> None:
        super().__init__()
        self.gate_up_proj = _joined([mlp.gate_proj, mlp.up_proj])
        self.down_proj = mlp.down_proj

    def __call__(self, hidden: mx.array) -> mx.array:
        """Return the output for [..., hidden_size]."""
        gate, up = mx.split(self.gate_up_proj(hidden), 2, axis=-1)
        output: mx.array = self.down_proj(_gated(gate, up))
        return output


def fuse(model: Any) -> None:
    """Replace the modules of a model of mlx-lm where that is known to be right, one after the other."""
    for layer in model.layers:
        attention: Any = getattr(layer, "self_attn", None)
        if type(attention) in _ATTENTIONS and _can_join([attention.q_proj, attention.k_proj, attention.v_proj]):
            layer.self_attn = FusedAttention(attention)
        mlp: Any = getattr(layer, "mlp", None)
        if type(mlp) in _MLPS and _can_join([mlp.gate_proj, mlp.up_proj]):
            layer.mlp = FusedMlp(mlp)
        mx.eval(layer.parameters())


@partial(mx.compile, shapeless=True)
def _gated(gate: mx.array, up: mx.array) -> mx.array:
    """Return silu(gate) * up; by the exponential, which the CPU computes in two thirds of the sigmoid's time."""
    return gate * up / (1 + mx.exp(-gate))


def _can_join(projections: Sequence[Any]) -> bool:
    """Return whether projections keep their weights alike."""
    first = projections[0]
    return all(
        type(other) is type(first)
        and set(other) == set(first)
        and getattr(other, "group_size", 0) == getattr(first, "group_size", 0)
        and getattr(other, "bits", 0) == getattr(first, "bits", 0)
        and getattr(other, "mode", "") == getattr(first, "mode", "")
        for other in projections
    )


def _joined(projections: Sequence[Any]) -> Any:
    """Return one projection whose outputs are those of all, one after the other; the first one's module is reused."""
    joined = projections[0]
    for name in joined:
        joined[name] = mx.concatenate([projection[name] for projection in projections], axis=0)
    return joined
