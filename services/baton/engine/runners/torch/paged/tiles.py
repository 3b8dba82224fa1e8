"""How large the tiles of the attention kernel are, and into how many parts keys are split."""

from __future__ import annotations

from typing import NamedTuple

import torch

_MIN_ROWS = 16
"""Rows of the smallest matrix that a tensor core multiplies."""
_MAX_SPLITS = 32
_MIN_SPLIT_KEYS = 256
"""Keys from which a split is worth being joined with the others."""


class Tiles(NamedTuple):
    """Sizes that the kernel is compiled for."""

    queries: int
    """Queries of a tile; times the query heads of a KV head, its rows."""
    rows: int
    """Rows of a tile, filled up to a power of 2, 16 or more."""
    keys: int
    """Keys of a tile; a power of 2."""
    num_warps: int
    """Warps of a program."""
    num_stages: int
    """Tiles of keys that are fetched ahead, and the one at hand."""


def tiles_for(dtype: torch.dtype, *, group: int, head_dim: int, max_queries: int) -> Tiles:
    """Return the tiles of a batch.

    `tests/engine/runners/test_torch_paged_compile.py` proves that none of them spills registers on sm_90a.

    Args:
        dtype: Of queries and cache.
        group: Query heads of one KV head.
        head_dim: Elements of a head.
        max_queries: Most queries of a sequence; 1: every sequence decodes.
    """
    if dtype == torch.float32:  # no tensor core multiplies it exactly
        rows, keys, num_warps, num_stages = (32 if max_queries > 1 and head_dim <= 128 else 16), 16, 8, 1
    elif max_queries == 1:
        rows, keys, num_warps, num_stages = 16, (32 if head_dim > 128 else 64), 4, 3
    elif head_dim > 128:
        rows, keys, num_warps, num_stages = 64, 32, 8, 2
    else:
        rows, keys, num_warps, num_stages = 128, 64, 8, 3
    rows = max(rows, padded(group))
    return Tiles(1 if max_queries == 1 else rows // group, rows, keys, num_warps, num_stages)


def num_splits(num_tiles: int, num_kv_heads: int, max_end: int, num_multiprocessors: int) -> int:
    """Return into how many parts the keys of each tile are split: as many as keep all multiprocessors at work.

    Args:
        num_tiles: Tiles of queries.
        num_kv_heads: KV heads.
        max_end: Keys of the longest sequence, or the most that it may have.
        num_multiprocessors: Those of the device, 1 or more.

    Returns:
        A power of 2.
    """
    wanted = 2 * num_multiprocessors // max(1, num_tiles * num_kv_heads)
    useful = max_end // _MIN_SPLIT_KEYS
    return 1 << (max(1, min(wanted, useful, _MAX_SPLITS)).bit_length() - 1)


def padded(size: int) -> int:
    """Return the next power of 2, 16 or more."""
    return max(_MIN_ROWS, 1 << (size - 1).bit_length())
