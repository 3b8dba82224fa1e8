"""Attention over cached latents (MLA): heads are made of them within a pass, and never kept.

Few queries are turned into the space of latents, and read the cache as it is; for many it takes fewer operations to
make keys and values of every position.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from baton.engine.runners.torch.batch import PackedBatch, QuerySegment
from baton.engine.runners.torch.ops.device_ops import DeviceOps
from baton.engine.runners.torch.ops.eager.attention import AttentionParams
from baton.engine.runners.torch.ops.pool import KeysValues

_MOST_ELEMENTS = 1 << 25  # of keys that are made of latents at once: 128 MiB in float32


def has_latents(attention: Any) -> bool:
    """Return whether attention in transformers' code makes keys and values of latents."""
    return hasattr(attention, "expand_kv")


class IndexRows(NamedTuple):
    """What an index makes of rows: a key's score is the sum over index heads of weight times relu(query * key).

    Source: DeepSeek-V3.2 (arXiv 2512.02556), section 2.1. Sizes are [num_rows, num_heads, index_dim or 1].
    """

    query: torch.Tensor
    keys: torch.Tensor
    weights: torch.Tensor


def keep_latents(attention: Any) -> None:
    """Have attention hand over what is cached, latents and rotated keys, in place of the heads made of it."""
    attention.expand_kv = lambda latents, rotated: (latents, rotated)
    if getattr(attention, "indexer", None) is not None:
        attention.indexer.forward = partial(_index, attention.indexer)


def _index(
    indexer: Any, hidden: torch.Tensor, narrow: torch.Tensor, angles: Sequence[torch.Tensor], *_: Any, **__: Any
) -> IndexRows:
    """Return what an index of transformers makes of rows, before it has seen other keys."""
    code, size = sys.modules[type(indexer).__module__], indexer.qk_rope_head_dim
    rotate = getattr(code, "apply_rotary_pos_emb", None) or code.apply_rotary_pos_emb_interleave
    query = indexer.wq_b(narrow)[0].unflatten(-1, (indexer.n_heads, -1))
    keys = indexer.k_norm(indexer.wk(hidden))[0, :, None]
    turned = rotate(query[..., :size], keys[..., :size], angles[0][0], angles[1][0])
    query, keys = (torch.cat([part, each[..., size:]], -1) for part, each in zip(turned, (query, keys), strict=True))
    weights = indexer.weights_proj(hidden)[0].float() * indexer.n_heads**-0.5 * indexer.softmax_scale
    return IndexRows(query, keys[:, 0], weights[..., None])


def attend_latents(
    ops: DeviceOps,
    batch: PackedBatch,
    segments: Sequence[QuerySegment],
    attention: Any,
    query: torch.Tensor,
    params: AttentionParams,
    indices: IndexRows | None = None,
) -> torch.Tensor:
    """Attend as `DeviceOps.attend` does, with `indices` to the keys that score highest, as many as the layer's says."""
    sizes, num_rotated = (attention.qk_nope_head_dim, attention.v_head_dim), attention.qk_rope_head_dim
    keys_of, values_of = attention.kv_b_proj.weight.unflatten(0, (len(query), -1)).split(sizes, dim=1)
    attended = []
    for segment in segments:
        latents, others = batch.pool.read(segment.table, attention.layer_idx, 0, segment.end)
        rotated, own = others[..., :num_rotated], slice(segment.first_row, segment.first_row + segment.num_rows)
        rows, rank, num_made = query[:, own], latents.shape[-1], sum(sizes)
        is_chosen = indices is not None and segment.end > attention.indexer.index_topk
        if is_chosen or segment.num_rows * (2 * rank - num_made) < rank * num_made:
            plain, turned = rows.split((sizes[0], num_rotated), dim=-1)
            narrow = torch.cat([plain @ keys_of, turned], dim=-1)
            kv = KeysValues(torch.cat([latents, rotated], dim=-1), latents)
            if indices is not None and is_chosen:
                index = IndexRows(indices.query[own], others[0, :, num_rotated:], indices.weights[own])
                found = _attend_to_chosen(narrow, kv, index, attention.indexer.index_topk, segment.start, params)
            else:
                found = ops.attend_positions(batch, narrow[None], kv, params, first_query=segment.start)
            attended.append(found.reshape(*rows.shape[:2], rank) @ values_of.mT)
            continue
        num_heads = max(1, _MOST_ELEMENTS // (latents.shape[1] * rows.shape[-1]))
        of_heads = []
        for part, *makers in zip(*(each.split(num_heads) for each in (rows, keys_of, values_of)), strict=True):
            plain, values = (latents @ maker.mT for maker in makers)
            kv = KeysValues(torch.cat([plain, rotated.expand(len(plain), -1, -1)], dim=-1), values)
            found = ops.attend_positions(batch, part[:, None], kv, params, first_query=segment.start)
            of_heads.append(found.reshape(*part.shape[:2], -1))
        attended.append(torch.cat(of_heads))
    return torch.cat(attended, dim=1)


def _attend_to_chosen(
    query: torch.Tensor, kv: KeysValues, index: IndexRows, num_chosen: int, start: int, params: AttentionParams
) -> torch.Tensor:
    """Attend from all heads to one head of keys, of which the queries, from position `start` on, see the chosen."""
    positions, parts = torch.arange(len(index.keys), device=query.device), []
    step = max(1, _MOST_ELEMENTS // (max(len(query), index.query.shape[1]) * len(positions)))
    for first in range(0, query.shape[1], step):
        own = slice(first, first + step)
        is_later = positions > positions[start:][own, None]
        scores = ((index.query[own].float() @ index.keys.float().T).relu_() * index.weights[own]).sum(1)
        chosen = scores.masked_fill_(is_later, -torch.inf).topk(num_chosen).indices
        hidden = torch.ones_like(is_later).scatter_(1, chosen, False) | is_later
        scores = (query[:, own] @ kv.keys[0].T).float() * params.scaling
        parts.append(scores.masked_fill_(hidden, -torch.inf).softmax(-1).to(query.dtype) @ kv.values[0])
    return torch.cat(parts, dim=1)
