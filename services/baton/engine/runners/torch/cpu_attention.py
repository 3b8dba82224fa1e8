"""Causal attention of many queries on a CPU, in blocks of queries whose scores stay in the cache of a core.

torch's own kernel reaches a fifth of what the two products of attention cost by oneDNN (bench/results/engine_cpu.json).
Scores and their exponentials are float32 whatever the cache holds.
"""

from __future__ import annotations

import torch

from baton.engine.runners.torch.onednn import product
from baton.engine.runners.torch.pool import KeysValues

MIN_QUERIES = 16
"""Queries from which blocks are worth their calls."""
_MAX_SCORES = 1024 * 1024
"""Scores of one block and KV head: 4 MiB. At 4096 keys a quarter of it takes 1.5 to 2 times as long."""
_MAX_BLOCK_QUERIES = 128


def attend_causally(
    query: torch.Tensor, kv: KeysValues, *, first_query: int, scaling: float, window_tokens: int
) -> torch.Tensor:
    """Attend from consecutive positions to all before them.

    Interval table: keys are positions [0, num_keys); queries are positions [first_query, num_keys); a query at `p` sees
    [max(0, p + 1 - window_tokens), p], all before it without a window.

    Args:
        query: [num_kv_heads, num_groups, num_queries, head_dim], rotated.
        kv: Keys and values, one per position.
        first_query: Position of the first query, counted from the first key.
        scaling: Factor of the scores.
        window_tokens: Positions that a query sees, its own included; 0: all.

    Returns:
        [num_kv_heads, num_groups, num_queries, value_head_dim].
    """
    num_kv_heads, num_groups, num_queries, _ = query.shape
    output = query.new_empty(num_kv_heads, num_groups, num_queries, kv.values.shape[-1])
    scaled = query.float() * scaling
    keys = kv.keys.float()
    values = kv.values if query.dtype == torch.bfloat16 else kv.values.float()  # float16 would be summed in float16
    num_block_queries = _block_queries(num_groups, kv.keys.shape[1])
    for start in range(0, num_queries, num_block_queries):
        end = min(num_queries, start + num_block_queries)
        first_key = max(0, first_query + start + 1 - window_tokens) if window_tokens else 0
        last_key = first_query + end
        first_hidden = first_key if window_tokens else first_query + start  # before it every query sees every key
        mask = _mask(first_query + start, end - start, first_hidden, window_tokens)
        for head in range(num_kv_heads):
            visible = slice(first_key, last_key)
            rows = scaled[head, :, start:end].reshape(num_groups * (end - start), -1)
            scores = product(rows, keys[head, visible]).view(num_groups, end - start, -1)
            scores[..., first_hidden - first_key :] += mask
            weights = scores.softmax(dim=-1).to(values.dtype).flatten(0, 1)
            attended = product(weights, values[head, visible].t())
            output[head, :, start:end] = attended.view(num_groups, end - start, -1)
    return output


def _block_queries(num_groups: int, num_keys: int) -> int:
    fitting = _MAX_SCORES // (num_groups * num_keys)
    return min(_MAX_BLOCK_QUERIES, max(MIN_QUERIES, fitting // MIN_QUERIES * MIN_QUERIES))


def _mask(first_query: int, num_queries: int, first_key: int, window_tokens: int) -> torch.Tensor:
    """Return 0 where a query sees a key and -inf where not: [num_queries, num_keys], float32."""
    queries = torch.arange(first_query, first_query + num_queries)[:, None]
    keys = torch.arange(first_key, first_query + num_queries)[None, :]
    is_hidden = keys > queries
    if window_tokens:
        is_hidden |= keys <= queries - window_tokens
    return torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -torch.inf)
