"""Attention over cached latents (MLA): heads are made of them within a pass, and never kept.

Few queries are turned into the space of latents, and read the cache as it is; for many it takes fewer operations to
make keys and values of every position.

Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1 and appendix C.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from baton.engine.runners.torch.batch import PackedBatch, QuerySegment
from baton.engine.runners.torch.ops.device_ops import DeviceOps
from baton.engine.runners.torch.ops.eager.attention import AttentionParams
from baton.engine.runners.torch.ops.pool import KeysValues

_MOST_ELEMENTS = 1 << 25
"""Of keys that are made of latents at once: 128 MiB in float32."""


def has_latents(attention: Any) -> bool:
    """Return whether attention in transformers' code makes keys and values of latents."""
    return hasattr(attention, "expand_kv")


def keep_latents(attention: Any) -> None:
    """Have attention hand over what is cached, latents and rotated keys, in place of the heads made of it."""
    attention.expand_kv = lambda latents, rotated: (latents, rotated)


def attend_latents(
    ops: DeviceOps,
    batch: PackedBatch,
    segments: Sequence[QuerySegment],
    attention: Any,
    query: torch.Tensor,
    params: AttentionParams,
) -> torch.Tensor:
    """Attend as `DeviceOps.attend` does; `attention`, the layer's, makes heads of latents by `kv_b_proj`."""
    sizes = (attention.qk_nope_head_dim, attention.v_head_dim)
    keys_of, values_of = attention.kv_b_proj.weight.unflatten(0, (len(query), -1)).split(sizes, dim=1)
    attended = []
    for segment in segments:
        latents, rotated = batch.pool.read(segment.table, attention.layer_idx, 0, segment.end)
        rows = query[:, segment.first_row : segment.first_row + segment.num_rows]
        attend = partial(ops.attend_positions, batch, params=params, first_query=segment.start)
        rank, num_made = latents.shape[-1], sum(sizes)
        if segment.num_rows * (2 * rank - num_made) < rank * num_made:
            plain, turned = rows.split((sizes[0], rotated.shape[-1]), dim=-1)
            kv = KeysValues(torch.cat([latents, rotated], dim=-1), latents)
            narrow = attend(torch.cat([plain @ keys_of, turned], dim=-1)[None], kv)
            attended.append(narrow.reshape(*rows.shape[:2], rank) @ values_of.mT)
            continue
        num_heads = max(1, _MOST_ELEMENTS // (latents.shape[1] * rows.shape[-1]))
        of_heads = []
        for own, *makers in zip(*(each.split(num_heads) for each in (rows, keys_of, values_of)), strict=True):
            plain, values = (latents @ maker.mT for maker in makers)
            kv = KeysValues(torch.cat([plain, rotated.expand(len(plain), -1, -1)], dim=-1), values)
            of_heads.append(attend(own[:, None], kv).reshape(*own.shape[:2], -1))
        attended.append(torch.cat(of_heads))
    return torch.cat(attended, dim=1)
