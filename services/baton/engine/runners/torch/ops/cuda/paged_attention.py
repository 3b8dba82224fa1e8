"""Attends from packed queries to keys in blocks, by the Triton kernels; on a CPU only under TRITON_INTERPRET=1."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from baton.engine.runners.torch.ops.cuda.paged_queries import MAX_SPLITS, PagedQueries, num_splits, padded
from baton.engine.runners.torch.ops.eager.attention import AttentionParams
from baton.engine.runners.torch.ops.pool import KeysValues

_CPU_MULTIPROCESSORS = 4


def attend_by_kernel(
    query: torch.Tensor, pool: KeysValues, queries: PagedQueries, params: AttentionParams
) -> torch.Tensor:
    """Attend causally from every row to the positions of its sequence up to its own.

    `query`: [num_rows, num_heads, head_dim], rotated; elements of a head adjacent. `pool`: keys [num_kv_heads,
    num_blocks, block_tokens, head_dim] and values of one layer, K and V of the rows themselves written already.
    `queries`: whose rows they are. `params`: how scores become weights. Returns [num_rows, num_heads, value_head_dim],
    contiguous.
    """
    num_rows, num_heads, _ = query.shape
    num_kv_heads, _, _, value_dim = pool.values.shape
    splits = num_splits(queries.num_tiles, num_kv_heads, queries.max_end, num_multiprocessors(query.device))
    output = query.new_empty(num_rows, num_heads, value_dim)
    _launch(query, pool, queries, params, output, _parts(output, splits), splits)
    return output


def _launch(
    query: torch.Tensor,
    pool: KeysValues,
    queries: PagedQueries,
    params: AttentionParams,
    output: torch.Tensor,
    parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    splits: int,
) -> None:
    from baton.engine.runners.torch.ops.cuda.paged_kernel import attend_tile, join_splits

    tiles = queries.tiles
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads, _, block_tokens, value_dim = pool.values.shape
    group = num_heads // num_kv_heads
    assert tiles.rows >= tiles.queries * group, f"{tiles} does not hold groups of {group} heads"
    sinks = output if params.sinks is None else params.sinks
    sizes: dict[str, Any] = {"VALUE_DIM": value_dim, "PADDED_VALUE_DIM": padded(value_dim)}
    sizes["HAS_SINKS"] = params.sinks is not None
    attend_tile[(queries.num_tiles, num_kv_heads, splits)](
        *(query, pool.keys, pool.values, output, sinks, *parts),
        *(queries.tables, queries.ends, queries.first_rows, queries.tile_sequences, queries.tile_first_queries),
        *(params.scaling, query.stride(0), query.stride(1), pool.keys.stride(0), pool.values.stride(0)),
        *(queries.tables.stride(0), num_heads, splits),
        **sizes,
        IS_SPLIT=splits > 1,
        GROUP=group,
        HEAD_DIM=head_dim,
        PADDED_HEAD_DIM=padded(head_dim),
        BLOCK_TOKENS=block_tokens,
        TILE_QUERIES=tiles.queries,
        TILE_ROWS=tiles.rows,
        TILE_KEYS=tiles.keys,
        WINDOW=params.window_tokens,
        SOFT_CAP=params.soft_cap,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    if splits > 1:
        join_splits[(num_rows, num_heads)](output, sinks, *parts, num_heads, splits, **sizes, MAX_SPLITS=MAX_SPLITS)


def _parts(output: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return room for what each split attends to, its maxima and sums; `output` stands for them where it is not split.

    A captured graph keeps what is allocated here in its own memory.
    """
    if splits == 1:
        return output, output, output
    shape = (*output.shape[:2], splits)
    parts, maxima, sums = (
        torch.empty(size, device=output.device) for size in ((*shape, output.shape[2]), shape, shape)
    )
    return parts, maxima, sums


@cache
def num_multiprocessors(device: torch.device) -> int:
    """Return those of a device; a few where kernels are interpreted."""
    if device.type != "cuda":
        return _CPU_MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
