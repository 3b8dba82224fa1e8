"""Causal attention in plain torch: by its own kernel, and in blocks of queries with all that models do to scores.

The scores of a block stay in the caches of a core. On a CPU without MKL's fast code torch's own kernel takes 6.4 ms for
512 queries of 9 heads of 64 elements where blocks by oneDNN take 2 to 3 (one thread, paired). Scores and their
exponentials are float32 whatever the cache holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch.nn.functional import scaled_dot_product_attention

from baton.engine.runners.torch.ops.pool import KeysValues

_MAX_SCORES = 1024 * 1024
"""Scores of one block and KV head: 4 MiB. At 4096 keys a quarter of it takes 1.5 to 2 times as long."""
_MIN_BLOCK_QUERIES, _MAX_BLOCK_QUERIES = 16, 128


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How a layer makes weights of the products of queries and keys."""

    scaling: float
    window_tokens: int = 0
    """Positions that a query sees, its own included; 0: all."""
    soft_cap: float = 0.0
    """Scores are bent towards plus and minus this bound by a hyperbolic tangent; 0: they are not."""
    sinks: torch.Tensor | None = None
    """Score of a key without a value, per query head: [num_heads]; None: there is none."""
    is_plain: bool = field(init=False)
    """Whether torch's own kernel knows how to do this."""

    def __post_init__(self) -> None:
        """Find out whether anything is done to scores."""
        object.__setattr__(self, "is_plain", not self.soft_cap and self.sinks is None)


Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns rows [num_rows, num_inputs] times a transposed weight [num_outputs, num_inputs], of any strides."""


def multiply_by_torch(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """See `Multiply`."""
    return rows @ weight.t()


def attend_causally(
    query: torch.Tensor,
    kv: KeysValues,
    params: AttentionParams,
    *,
    first_query: int,
    multiply: Multiply = multiply_by_torch,
    multiplies_bfloat16: bool = True,
) -> torch.Tensor:
    """Attend from consecutive positions to all before them, in blocks.

    Interval table: keys are positions [0, num_keys); queries are positions [first_query, num_keys); a query at `p` sees
    [max(0, p + 1 - window_tokens), p], all before it without a window.

    `query` is [num_kv_heads, num_groups, num_queries, head_dim], rotated, like the result. `multiplies_bfloat16`:
    whether `multiply` does so in bfloat16, which not every CPU can; float16 would be summed in float16.
    """
    num_kv_heads, num_groups, num_queries, _ = query.shape
    output = query.new_empty(num_kv_heads, num_groups, num_queries, kv.values.shape[-1])
    scaled = query.float() * params.scaling
    keys = kv.keys.float()
    values = kv.values if query.dtype == torch.bfloat16 and multiplies_bfloat16 else kv.values.float()
    sinks = None if params.sinks is None else params.sinks.float().view(num_kv_heads, num_groups, 1, 1)
    window_tokens = params.window_tokens
    fitting = _MAX_SCORES // (num_groups * kv.keys.shape[1]) // _MIN_BLOCK_QUERIES * _MIN_BLOCK_QUERIES
    num_block_queries = min(_MAX_BLOCK_QUERIES, max(_MIN_BLOCK_QUERIES, fitting))
    for start in range(0, num_queries, num_block_queries):
        end = min(num_queries, start + num_block_queries)
        first_key = max(0, first_query + start + 1 - window_tokens) if window_tokens else 0
        first_hidden = first_key if window_tokens else first_query + start  # before it every query sees every key
        mask = _mask(end - start, first_query + start - first_hidden, window_tokens, query.device)
        visible = slice(first_key, first_query + end)
        for head in range(num_kv_heads):
            rows = scaled[head, :, start:end].reshape(num_groups * (end - start), -1)
            scores = multiply(rows, keys[head, visible]).view(num_groups, end - start, -1)
            if params.soft_cap:
                scores.div_(params.soft_cap).tanh_().mul_(params.soft_cap)
            scores[..., first_hidden - first_key :] += mask
            weights = _weights(scores, None if sinks is None else sinks[head]).to(values.dtype)
            attended = multiply(weights.flatten(0, 1), values[head, visible].t())
            output[head, :, start:end] = attended.view(num_groups, end - start, -1)
    return output


def attend_by_torch(
    query: torch.Tensor,
    kv: KeysValues,
    params: AttentionParams,
    *,
    first_query: int,
    mask_of: Callable[[int, int, int, torch.device], torch.Tensor | None] | None = None,
) -> torch.Tensor:
    """Attend as `attend_causally` does, by torch's own kernel; scores are plain.

    Takes what that takes; `mask_of` is `causal_mask`, or what knows its results.
    """
    if query.shape[2] == 1:
        # The heads of a group see the same keys, all of them: they are queries of one head.
        return scaled_dot_product_attention(query[None, :, :, 0], kv.keys[None], kv.values[None], scale=params.scaling)
    mask = (mask_of or causal_mask)(first_query, kv.keys.shape[1], params.window_tokens, query.device)
    keys, values = (tensor[:, None].expand(-1, query.shape[1], -1, -1) for tensor in kv)
    return scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=mask is None, scale=params.scaling
    )


def causal_mask(first_query: int, num_keys: int, window_tokens: int, device: torch.device) -> torch.Tensor | None:
    """Return which keys each query sees: [num_keys - first_query, num_keys], bool; None: all before its own.

    `first_query`: position of the first query, counted from the first key; the last key's is the last. `num_keys`:
    keys. `window_tokens`: positions that a query sees, its own included; 0: all. `device`: where to.
    """
    if first_query == 0 and (window_tokens == 0 or num_keys <= window_tokens):
        return None
    queries = torch.arange(first_query, num_keys, device=device)[:, None]
    keys = torch.arange(num_keys, device=device)[None, :]
    mask = keys <= queries
    return mask & (keys > queries - window_tokens) if window_tokens else mask


def _weights(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return the softmax of scores [num_groups, num_queries, num_keys]; a sink [num_groups, 1, 1] takes its share."""
    if sinks is None:
        return scores.softmax(dim=-1)
    return torch.cat([scores, sinks.expand(*scores.shape[:2], 1)], dim=-1).softmax(dim=-1)[..., :-1].contiguous()


@lru_cache(maxsize=16)  # at most 64 MiB, and the same in all layers: without a window nearly all blocks share one
def _mask(num_queries: int, num_before: int, window_tokens: int, device: torch.device) -> torch.Tensor:
    """Return 0 where a query sees a key and -inf where not: [num_queries, num_before + num_queries], float32.

    The first key lies `num_before` positions before the first query.
    """
    queries = torch.arange(num_before, num_before + num_queries, device=device)[:, None]
    keys = torch.arange(num_before + num_queries, device=device)[None, :]
    is_hidden = keys > queries
    if window_tokens:
        is_hidden |= keys <= queries - window_tokens
    return torch.zeros(is_hidden.shape, device=device).masked_fill_(is_hidden, -torch.inf)
