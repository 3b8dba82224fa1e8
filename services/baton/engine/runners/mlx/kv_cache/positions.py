"""Where positions lie in the pool, and which of them a query may see; on the host, before any kernel is launched.

A slot is a row of a layer's pool: position `p` of a sequence lies in slot
`block_table[p // block_tokens] * block_tokens + p % block_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Slots = slice | npt.NDArray[np.int32]
"""Slots in order of positions: a slice where they are consecutive, since slicing copies nothing."""

Mask = Literal["causal"] | mx.array | None
"""What `mx.fast.scaled_dot_product_attention` takes: None shows everything."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Positions [start, end) of one sequence that are computed, and the blocks in which it lives."""

    start: int
    end: int
    block_table: Sequence[int]
    """Covers at least `end` positions."""


@dataclass(frozen=True, slots=True)
class VisibleKeys:
    """What the attention of layers with one window reads for a batch.

    Interval table of a row: [0, first) is outside every query's window and not read; [first, first + num_tokens) is
    read, where `first` is a multiple of the block size. Masked is what a query may not see of it: positions before
    its window or after its own, and the padding of shorter rows.
    """

    slots: slice | None
    """Consecutive slots of the only row, or of each row of a batch in rows; None: `blocks` says."""
    blocks: mx.array | None
    """[num_rows, num_blocks], int32."""
    num_tokens: int
    """Tokens read per row; trims the last block."""
    mask: Mask
    """Broadcasts to [num_rows, 1, num_queries, num_tokens]; True: visible."""
    written: mx.array | None = None
    """[num_rows, 1, num_tokens, 1]: which positions hold what the sequence wrote; None: all of them.

    The others hold what earlier owners of the blocks left. V counts as zero there, since a NaN passes the mask (0 * NaN
    is NaN).
    """


def slots_of(block_table: Sequence[int], start: int, end: int, block_tokens: int) -> Slots:
    """Return the slots of positions [start, end)."""
    first_block = start // block_tokens
    blocks = np.asarray(block_table[first_block : -(-end // block_tokens)], dtype=np.int32)
    if _are_consecutive(blocks):
        first = int(blocks[0]) * block_tokens + start % block_tokens
        return slice(first, first + end - start)
    slots: npt.NDArray[np.int32] = (
        (blocks[:, None] * block_tokens + np.arange(block_tokens)).astype(np.int32).reshape(-1)
    )
    skipped = start - first_block * block_tokens
    return slots[skipped : skipped + end - start]


def read_one(extent: Extent, window_tokens: int, block_tokens: int) -> VisibleKeys:
    """Return what one sequence reads; `window_tokens` 0 stands for all."""
    first = _first_visible(extent.start, window_tokens) // block_tokens * block_tokens
    table = np.asarray(extent.block_table[first // block_tokens : -(-extent.end // block_tokens)], dtype=np.int32)
    mask = _mask_of_one(extent, first, window_tokens)
    num_tokens = extent.end - first
    if _are_consecutive(table):
        slot = int(table[0]) * block_tokens
        return VisibleKeys(slice(slot, slot + num_tokens), None, num_tokens, mask)
    return VisibleKeys(None, mx.array(table[None]), num_tokens, mask)


def read_many(extents: Sequence[Extent], window_tokens: int, block_tokens: int) -> VisibleKeys:
    """Return what sequences of different lengths read, each for its last position."""
    first_blocks = [_first_visible(extent.end - 1, window_tokens) // block_tokens for extent in extents]
    last_blocks = [(extent.end - 1) // block_tokens for extent in extents]
    num_blocks = 1 + max(last - first for first, last in zip(first_blocks, last_blocks, strict=True))
    blocks = np.zeros((len(extents), num_blocks), dtype=np.int32)
    for row, (extent, first, last) in enumerate(zip(extents, first_blocks, last_blocks, strict=True)):
        blocks[row, : last - first + 1] = extent.block_table[first : last + 1]
    first_positions = np.asarray(first_blocks)[:, None] * block_tokens
    positions = first_positions + np.arange(num_blocks * block_tokens)
    queries = np.asarray([extent.end - 1 for extent in extents])[:, None]
    mask = mx.array(_is_visible(queries, positions, window_tokens)[:, None, None, :])
    written = mx.array((positions <= queries)[:, None, :, None])
    return VisibleKeys(None, mx.array(blocks), num_blocks * block_tokens, mask, written)


def read_rows(starts: npt.NDArray[np.int32], window_tokens: int) -> VisibleKeys:
    """Return what the rows of a batch read: each lies at the same positions of its own row as in its sequence.

    `starts`, [num_rows], are positions of each row's query; a window of 0 stands for all.
    """
    first, end = _first_visible(int(starts.min()), window_tokens), int(starts.max()) + 1
    if starts.min() == starts.max():
        return VisibleKeys(slice(first, end), None, end - first, None)
    positions, queries = mx.arange(first, end)[None], mx.array(starts)[:, None]
    visible = positions <= queries
    if window_tokens:
        visible = visible & (positions > queries - window_tokens)
    return VisibleKeys(slice(first, end), None, end - first, visible[:, None, None, :])


def _are_consecutive(blocks: npt.NDArray[np.int32]) -> bool:
    return bool(np.all(np.diff(blocks) == 1))


def _first_visible(position: int, window_tokens: int) -> int:
    return max(0, position - window_tokens + 1) if window_tokens else 0


def _mask_of_one(extent: Extent, first: int, window_tokens: int) -> Mask:
    if not window_tokens or extent.end - first <= window_tokens:
        return "causal" if extent.end - extent.start > 1 else None
    queries = np.arange(extent.start, extent.end)[:, None]
    return mx.array(_is_visible(queries, np.arange(first, extent.end)[None], window_tokens))


def _is_visible(
    queries: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], window_tokens: int
) -> npt.NDArray[np.bool_]:
    visible = positions <= queries
    return visible & (positions > queries - window_tokens) if window_tokens else visible
