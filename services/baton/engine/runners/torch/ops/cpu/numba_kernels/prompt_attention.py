"""Causal attention of prompts: scores and their exponentials never leave the caches of a core.

Tiles of queries pass over blocks of keys; the softmax is corrected as higher scores appear.
Source: Dao et al. 2022, FlashAttention, algorithm 1. On an EPYC with AVX2, one thread, 9 heads of 64 elements over 3 KV
heads, interleaved: 512 queries take 4.9 ms (torch's own kernel 9.2, blocks by oneDNN 9.3), 4096 take 278 (315, 395).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel
from baton.engine.runners.torch.ops.cpu.numba_kernels.numbers import FAST, exponential
from baton.engine.runners.torch.ops.cpu.numba_kernels.tiles import TILE_COLUMNS, TILE_ROWS, tile_product

_QUERIES = 48
"""Queries of a tile of scores."""
_KEYS = 512
"""Keys of a tile of scores, which takes 96 KiB. A multiple of the columns of a tile of a product."""
_multiply, _add_product = tile_product(is_adding=False), tile_product(is_adding=True)
_NOTHING = np.float32(-np.inf)


@kernel
def attend_prompt(
    query: Any, keys: Any, values: Any, first_query: int, window_tokens: int, scaling: Any, output: Any
) -> None:
    """Attend from consecutive positions to all before them; all arrays are contiguous and float32.

    Interval table: as `blocked_attention.attend_causally` has it.

    Args:
        query: [num_kv_heads, num_groups, num_queries, head_dim], rotated.
        keys: [num_kv_heads, num_keys, head_dim].
        values: [num_kv_heads, num_keys, value_head_dim].
        first_query: Position of the first query, counted from the first key.
        window_tokens: Positions that a query sees, its own included; 0: all.
        scaling: Factor of the scores, float32.
        output: Written: [num_kv_heads, num_groups, num_queries, value_head_dim].
    """
    num_kv_heads, num_groups, num_queries, head_dim = query.shape
    num_keys, value_head_dim = keys.shape[1], values.shape[2]
    num_panels = -(-num_keys // TILE_COLUMNS)
    turned = np.zeros((num_panels * head_dim, TILE_COLUMNS), np.float32)
    padded = np.zeros((num_keys, -(-value_head_dim // TILE_COLUMNS) * TILE_COLUMNS), np.float32)
    rows = np.zeros((_QUERIES, head_dim), np.float32)
    scores = np.zeros((_QUERIES, _KEYS), np.float32)
    sums = np.zeros((_QUERIES, padded.shape[1]), np.float32)
    highest, totals = np.empty(_QUERIES, np.float32), np.empty(_QUERIES, np.float32)
    for kv_head in range(num_kv_heads):
        _lay_out(keys[kv_head], values[kv_head], turned, padded)
        for group in range(num_groups):
            for first in range(0, num_queries, _QUERIES):
                own = query[kv_head, group, first : first + _QUERIES]
                for row in range(len(own)):
                    for element in range(head_dim):
                        rows[row, element] = own[row, element] * scaling
                sums[:], highest[:], totals[:] = 0, _NOTHING, 0
                span = (first_query + first, len(own), window_tokens)
                _attend_tile(rows, turned, padded, span, (scores, sums, highest, totals))
                written = output[kv_head, group, first : first + _QUERIES]
                for row in range(len(own)):
                    factor = np.float32(1) / totals[row]
                    for element in range(value_head_dim):
                        written[row, element] = sums[row, element] * factor


@kernel
def _lay_out(keys: Any, values: Any, turned: Any, padded: Any) -> None:
    """Write the keys [num_keys, head_dim] as panels [head_dim, TILE_COLUMNS], and the values with more columns."""
    num_keys, head_dim = keys.shape
    for key in range(num_keys):
        panel, column = divmod(key, TILE_COLUMNS)
        own = turned[panel * head_dim : (panel + 1) * head_dim]
        for element in range(head_dim):
            own[element, column] = keys[key, element]
        for element in range(values.shape[1]):
            padded[key, element] = values[key, element]


@kernel
def _attend_tile(rows: Any, keys: Any, values: Any, span: Any, state: Any) -> None:
    """Attend from the queries of a tile, `rows`; `span` says at which positions they are, how many, and what they see.

    Args:
        rows: [_QUERIES, head_dim], scaled.
        keys: Panels, as `_lay_out` writes them.
        values: [num_keys, padded head_dim].
        span: Position of the first query, queries, window.
        state: Scores [_QUERIES, _KEYS]; and of each query the sum of values by their weights, the highest score, and
            the sum of weights.
    """
    start, num_queries, window_tokens = span
    scores, sums, highest, totals = state
    head_dim = rows.shape[1]
    end = start + num_queries
    first_seen = max(0, start + 1 - window_tokens) if window_tokens else 0
    for first in range(first_seen // TILE_COLUMNS * TILE_COLUMNS, end, _KEYS):
        num_keys = min(_KEYS, end - first)
        for column in range(0, num_keys, TILE_COLUMNS):
            panel = (first + column) // TILE_COLUMNS * head_dim
            for row in range(0, num_queries, TILE_ROWS):
                _multiply(rows, row, keys, panel, 0, head_dim, scores, column)
        for row in range(num_queries):
            position = start + row
            seen_end = min(num_keys, max(0, position + 1 - first))
            seen_start = min(seen_end, max(0, position + 1 - window_tokens - first)) if window_tokens else 0
            scores[row, :seen_start] = 0
            scores[row, seen_end:num_keys] = 0
            if seen_start < seen_end:
                _weigh(scores[row, seen_start:seen_end], row, sums, highest, totals)
        for column in range(0, values.shape[1], TILE_COLUMNS):
            for row in range(0, num_queries, TILE_ROWS):
                _add_product(scores, row, values, first, column, num_keys, sums, column)


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _weigh(scores: Any, row: Any, sums: Any, highest: Any, totals: Any) -> None:
    """Replace the scores of a query by weights, which count from its highest score yet; correct what is summed up."""
    known = highest[row]
    high = known
    for key in range(len(scores)):
        high = max(high, scores[key])
    total = np.float32(0)
    for key in range(len(scores)):
        weight = exponential(scores[key] - high)
        scores[key] = weight
        total += weight
    if high != known:
        factor = exponential(known - high) if known != _NOTHING else np.float32(0)
        highest[row] = high
        totals[row] *= factor
        for element in range(sums.shape[1]):
            sums[row, element] *= factor
    totals[row] += total
