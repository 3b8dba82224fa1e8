"""Paged attention in plain torch: what the kernel is checked against, and what takes its place without CUDA."""

from __future__ import annotations

import torch

from baton.engine.runners.torch.ops.cuda.paged_queries import PagedQueries
from baton.engine.runners.torch.ops.eager.attention import AttentionParams
from baton.engine.runners.torch.ops.pool import KeysValues


def attend_from_blocks(
    query: torch.Tensor, pool: KeysValues, queries: PagedQueries, params: AttentionParams
) -> torch.Tensor:
    """Attend as `cuda.paged_attention.attend_by_kernel` does; scores in float32, or in float64 where the queries are.

    Every row gathers the keys of its sequence up to the longest table, so its memory grows with rows times context.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads, _, block_tokens, value_dim = pool.values.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    counts = queries.first_rows.diff().long()
    sequence = torch.repeat_interleave(torch.arange(len(counts), device=query.device), counts, output_size=num_rows)
    row = torch.arange(num_rows, device=query.device)
    position = queries.ends[sequence] - queries.first_rows[sequence + 1] + row
    table = queries.tables[sequence].long()
    keys, values = (tensor[:, table].flatten(2, 3).to(wide) for tensor in pool)  # [num_kv_heads, num_rows, num_keys, _]
    grouped = query.view(num_rows, num_kv_heads, -1, head_dim).transpose(0, 1).to(wide)
    scores = grouped @ keys.transpose(-1, -2) * params.scaling
    if params.soft_cap:
        scores = (scores / params.soft_cap).tanh() * params.soft_cap
    key = torch.arange(table.shape[1] * block_tokens, device=query.device)
    is_seen = key <= position[:, None]
    if params.window_tokens:
        is_seen &= key > position[:, None] - params.window_tokens
    scores = scores.masked_fill(~is_seen[None, :, None], -torch.inf)
    values = values.masked_fill(~is_seen[..., None], 0.0)  # what nobody sees may be anything, even no number
    attended = _weights(scores, params.sinks) @ values
    return attended.transpose(0, 1).reshape(num_rows, num_heads, value_dim).to(query.dtype)


def _weights(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Return the softmax of scores [num_kv_heads, num_rows, group, num_keys]; 0 for a row that sees no key."""
    if sinks is not None:
        own = sinks.to(scores.dtype).view(scores.shape[0], 1, -1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, own], dim=-1).softmax(dim=-1)[..., :-1]
    return scores.softmax(dim=-1).nan_to_num(0.0)
