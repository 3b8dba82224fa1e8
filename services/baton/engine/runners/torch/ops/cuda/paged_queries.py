"""Whose rows a packed tensor of queries holds, told by tensors on the device; and how the kernels part the work.

Queries are cut into tiles, keys of long sequences into splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch

from baton.engine.runners.torch.ops.pool import upload


@dataclass(frozen=True, slots=True)
class PagedQueries:
    """The sequences of packed queries, cut into tiles of consecutive queries.

    Interval table: rows [first_rows[s], first_rows[s + 1]) are the queries of sequence `s`, at positions [ends[s] -
    their number, ends[s]); tile `t` holds `tiles.queries` of them, or what is left, from `tile_first_queries[t]` on.
    All tensors are int32 and lie on the pool's device.
    """

    tables: torch.Tensor
    """Blocks: [num_sequences, max_blocks]."""
    ends: torch.Tensor
    """Position after the last query: [num_sequences]; 0 for a row that only fills up a batch."""
    first_rows: torch.Tensor
    """[num_sequences + 1]."""
    tile_sequences: torch.Tensor
    """[num_tiles]."""
    tile_first_queries: torch.Tensor
    """[num_tiles]."""
    tiles: Tiles
    max_end: int
    """Highest position in `ends`, or the highest it may become."""

    @property
    def num_tiles(self) -> int:
        """Return the number of tiles."""
        return len(self.tile_sequences)


def padded_tables(tables: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Return the blocks of sequences on the device: [num_sequences, most blocks], int32, filled up with zeros."""
    sizes = np.fromiter(map(len, tables), np.int64, len(tables))
    padded = np.zeros((len(tables), sizes.max()), np.int32)
    padded[np.arange(sizes.max()) < sizes[:, None]] = np.fromiter(chain.from_iterable(tables), np.int32, sizes.sum())
    return upload(padded, device, torch.int32)


def pack_queries(
    tables: torch.Tensor, starts: Sequence[int], ends: Sequence[int], *, tiles: Tiles, device: torch.device
) -> PagedQueries:
    """Return the description of sequences laid end to end.

    `tables`: their `padded_tables`, which cover the positions before their ends. `starts`: position of the first query
    of each. `ends`: position after its last query. `tiles`: into what the queries are cut. `device`: where to.
    """
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    cut = [(index, first) for index, count in enumerate(counts) for first in range(0, count, tiles.queries)]
    return PagedQueries(
        tables=tables,
        ends=upload(ends, device, torch.int32),
        first_rows=upload(list(accumulate(counts, initial=0)), device, torch.int32),
        tile_sequences=upload([sequence for sequence, _ in cut], device, torch.int32),
        tile_first_queries=upload([first for _, first in cut], device, torch.int32),
        tiles=tiles,
        max_end=max(ends),
    )


_MIN_ROWS = 16
"""Rows of the smallest matrix that a tensor core multiplies."""
MAX_SPLITS = 32
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
    num_stages: int
    """Tiles of keys that are fetched ahead, and the one at hand."""


def tiles_for(dtype: torch.dtype, *, group: int, head_dim: int, max_queries: int) -> Tiles:
    """Return the tiles of a batch.

    `tests/engine/runners/torch/ops/cuda/test_paged_compile.py` proves that none of them spills registers on sm_90a.

    `group` counts query heads of one KV head; `max_queries` 1: every sequence decodes.
    """
    if dtype == torch.float32:  # no tensor core multiplies it exactly
        rows, keys, num_warps, num_stages = (32 if max_queries > 1 and head_dim <= 128 else 16), 16, 8, 1
    elif max_queries == 1:
        rows, keys, num_warps, num_stages = 16, (32 if head_dim > 128 else 64), 4, 3
    elif head_dim > 128:
        rows, keys, num_warps, num_stages = 64, 32, 8, 2
    else:
        rows, keys, num_warps, num_stages = 64, 64, 4, 3
    rows = max(rows, padded(group))
    return Tiles(1 if max_queries == 1 else rows // group, rows, keys, num_warps, num_stages)


def num_splits(num_tiles: int, num_kv_heads: int, max_end: int, num_multiprocessors: int) -> int:
    """Return into how many parts the keys of each tile are split: as many as keep all multiprocessors at work.

    `num_tiles`: tiles of queries. `num_kv_heads`: KV heads. `max_end`: keys of the longest sequence, or the most that
    it may have. `num_multiprocessors`: those of the device, 1 or more. Returns a power of 2.
    """
    wanted = 2 * num_multiprocessors // max(1, num_tiles * num_kv_heads)
    useful = max_end // _MIN_SPLIT_KEYS
    return 1 << (max(1, min(wanted, useful, MAX_SPLITS)).bit_length() - 1)


def padded(size: int) -> int:
    """Return the next power of 2, 16 or more."""
    return max(_MIN_ROWS, 1 << (size - 1).bit_length())
