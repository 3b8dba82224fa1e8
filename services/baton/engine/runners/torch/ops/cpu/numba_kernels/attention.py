"""Attention of one query per sequence, and of prompts.

Single queries read K and V from the blocks where they lie, once for all heads of a group: torch's own kernel takes
65 us for 9 heads over 512 positions of 3 KV heads of 64 elements, in float32 and in bfloat16; this takes 35 and 27, on
a core that needs 20 and 10 to read them.

Of prompts, scores and their exponentials never leave the caches of a core: tiles of queries pass over blocks of keys;
the softmax is corrected as higher scores appear. Source: Dao et al. 2022, FlashAttention, algorithm 1. On an EPYC with
AVX2, one thread, 9 heads of 64 elements over 3 KV heads, interleaved: 512 queries take 4.9 ms (torch's own kernel 9.2,
blocks by oneDNN 9.3), 4096 take 278 (315, 395).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray, njit, types

from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel, native
from baton.engine.runners.torch.ops.cpu.numba_kernels.numbers import FAST, exponential, narrow, widen
from baton.engine.runners.torch.ops.cpu.numba_kernels.products import TILE_COLUMNS, TILE_ROWS, tile_product
from baton.engine.runners.torch.ops.cpu.numba_kernels.team import run_by_team, share
from baton.engine.runners.torch.ops.cpu.numba_kernels.vectors import LINE_BYTES, call_attention, prefetch

_QUERIES = 48
"""Queries of a tile of scores."""
_KEYS = 512
"""Keys of a tile of scores, which takes 96 KiB. A multiple of the columns of a tile of a product."""
_multiply, _add_product = tile_product(is_adding=False), tile_product(is_adding=True)
_NOTHING = np.float32(-np.inf)


def attention_address(num_groups: int, key_head_dim: int, value_head_dim: int, *, is_bfloat16: bool) -> int:
    """Return where the attention of a shape of heads is; sizes known to the compiler keep sums in registers."""
    address: int = _attention(num_groups, key_head_dim, value_head_dim, is_bfloat16).address
    return address


@cache
def _attention(num_groups: int, key_head_dim: int, value_head_dim: int, is_bfloat16: bool) -> Any:
    """Return the compiled function; it closes over numbers alone, so that it is found again in numba's cache."""
    elements = types.CPointer(types.uint16 if is_bfloat16 else types.float32)
    numbers = types.CPointer(types.int64)
    signature = types.void(*[elements] * 4, *[numbers] * 4, types.float32)

    @native(signature)
    def attend_pointers(
        query: Any, keys: Any, values: Any, output: Any, rows: Any, tables: Any, spans: Any, sizes: Any, scaling: Any
    ) -> None:
        num_rows, num_sequences, most_blocks = sizes[0], sizes[1], sizes[2]
        num_kv_heads, num_blocks, block_tokens = sizes[3], sizes[4], sizes[5]
        num_heads = num_kv_heads * num_groups
        _attend(
            (num_groups, key_head_dim, value_head_dim),
            carray(query, (num_rows, num_heads, key_head_dim)),
            carray(keys, (num_kv_heads, num_blocks, block_tokens, key_head_dim)),
            carray(values, (num_kv_heads, num_blocks, block_tokens, value_head_dim)),
            carray(output, (num_rows, num_heads, value_head_dim)),
            carray(rows, num_sequences),
            carray(tables, (num_sequences, most_blocks)),
            carray(spans, (num_sequences, 2)),
            (sizes[6], sizes[7]),
            scaling,
        )

    return attend_pointers


@kernel
def attend(
    member: Any, address: Any, query: Any, keys: Any, values: Any, single: Any, scaling: Any, output: Any
) -> None:
    """Answer single queries; sums are float32 whatever the cache holds.

    `member` is one of a team, which answers those of some heads of K and V of some sequences; `address` is of the
    attention of this shape of heads; `query` [num_rows, num_heads, key_head_dim], rotated; `single` `rows`
    [num_sequences], those of the sequences' queries, `tables` [num_sequences, most_blocks], their blocks, and `spans`
    [num_sequences, 2], the positions [first, end) that they see; only those rows of `output` are written.
    """
    rows, tables, spans = single
    sizes = np.empty(8, np.int64)
    sizes[0], sizes[1], sizes[2] = query.shape[0], len(rows), tables.shape[1]
    sizes[3], sizes[4], sizes[5] = keys.shape[0], keys.shape[1], keys.shape[2]
    sizes[6], sizes[7] = share(len(rows) * keys.shape[0], 1, member)
    call_attention(address, (query, keys, values, output), (rows, tables, spans, sizes), scaling)


@njit(nogil=True, fastmath=FAST, error_model="numpy", forceinline=True)
def _attend(
    head: Any,
    query: Any,
    keys: Any,
    values: Any,
    output: Any,
    rows: Any,
    tables: Any,
    spans: Any,
    own: Any,
    scaling: Any,
) -> None:
    """Answer the queries of heads [first, end) of K and V, `own`, counted from sequence to sequence."""
    num_groups, key_head_dim, value_head_dim = head
    block_tokens, most_tokens = keys.shape[2], 0
    for sequence in range(len(rows)):
        most_tokens = max(most_tokens, spans[sequence, 1] - spans[sequence, 0])
    scores = np.empty((num_groups, most_tokens), np.float32)
    queries = np.empty((num_groups, key_head_dim), np.float32)
    sums = np.empty((num_groups, value_head_dim), np.float32)
    for each in range(own[0], own[1]):
        sequence, kv_head = divmod(each, keys.shape[0])
        row, first, end = rows[sequence], spans[sequence, 0], spans[sequence, 1]
        for group in range(num_groups):
            for element in range(key_head_dim):
                queries[group, element] = widen(query[row, kv_head * num_groups + group, element]) * scaling
        position = first
        while position < end:
            index, offset = divmod(position, block_tokens)
            length = min(block_tokens - offset, end - position)
            ahead = keys if position + length < end else values
            following = index + 1 if position + length < end else first // block_tokens
            _prefetch_block(ahead[kv_head, tables[sequence, following]])
            block = keys[kv_head, tables[sequence, index], offset:]
            _score((num_groups, key_head_dim), queries, block, scores, position - first, length)
            position += length
        _softmax(scores, end - first)
        sums[:] = 0
        position = first
        while position < end:
            index, offset = divmod(position, block_tokens)
            length = min(block_tokens - offset, end - position)
            if position + length < end:
                _prefetch_block(values[kv_head, tables[sequence, index + 1]])
            block = values[kv_head, tables[sequence, index], offset:]
            _add_values((num_groups, value_head_dim), scores, block, sums, position - first, length)
            position += length
        for group in range(num_groups):
            for element in range(value_head_dim):
                output[row, kv_head * num_groups + group, element] = narrow(sums[group, element], output)


@njit(nogil=True)
def _prefetch_block(block: Any) -> None:
    for index in range(0, block.size, LINE_BYTES // block.itemsize):
        prefetch(block, index)


@njit(nogil=True, fastmath=FAST, error_model="numpy")
def _softmax(scores: Any, num_tokens: int) -> None:
    """Replace scores [num_groups, num_tokens] by weights that sum up to 1."""
    for group in range(scores.shape[0]):
        highest = scores[group, 0]
        for token in range(num_tokens):
            highest = max(highest, scores[group, token])
        total = np.float32(0)
        for token in range(num_tokens):
            weight = exponential(scores[group, token] - highest)
            scores[group, token] = weight
            total += weight
        factor = np.float32(1) / total
        for token in range(num_tokens):
            scores[group, token] *= factor


@kernel
def _score(size: Any, queries: Any, keys: Any, scores: Any, start: int, num_tokens: int) -> None:
    """Write the products of queries [num_groups, head_dim] and the keys of one block."""
    num_groups, head_dim = size
    for token in range(0, num_tokens - 3, 4):
        for group in range(num_groups):
            first = second = third = fourth = np.float32(0)
            for element in range(head_dim):
                factor = queries[group, element]
                first += factor * widen(keys[token, element])
                second += factor * widen(keys[token + 1, element])
                third += factor * widen(keys[token + 2, element])
                fourth += factor * widen(keys[token + 3, element])
            scores[group, start + token] = first
            scores[group, start + token + 1] = second
            scores[group, start + token + 2] = third
            scores[group, start + token + 3] = fourth
    for token in range(num_tokens // 4 * 4, num_tokens):
        for group in range(num_groups):
            total = np.float32(0)
            for element in range(head_dim):
                total += queries[group, element] * widen(keys[token, element])
            scores[group, start + token] = total


@kernel
def _add_values(size: Any, weights: Any, values: Any, sums: Any, start: int, num_tokens: int) -> None:
    """Add the values of one block, weighted, to the sums [num_groups, head_dim]."""
    num_groups, head_dim = size
    for token in range(0, num_tokens - 3, 4):
        for group in range(num_groups):
            first, second = weights[group, start + token], weights[group, start + token + 1]
            third, fourth = weights[group, start + token + 2], weights[group, start + token + 3]
            for element in range(head_dim):
                sums[group, element] += (
                    first * widen(values[token, element])
                    + second * widen(values[token + 1, element])
                    + third * widen(values[token + 2, element])
                    + fourth * widen(values[token + 3, element])
                )
    for token in range(num_tokens // 4 * 4, num_tokens):
        for group in range(num_groups):
            weight = weights[group, start + token]
            for element in range(head_dim):
                sums[group, element] += weight * widen(values[token, element])


@kernel
def attend_prompt(
    team: Any, query: Any, keys: Any, values: Any, first_query: int, window_tokens: int, scaling: Any, output: Any
) -> None:
    """Attend from consecutive positions to all before them, as `eager.attention.attend_causally` does, into `output`.

    `team`: of threads, as `team.team_of` returns it; they share out the heads of queries. All arrays are contiguous and
    float32, keys and values [num_kv_heads, num_keys, head_dim] each.
    """
    run_by_team(team, _attend_heads, (query, keys, values, first_query, window_tokens, scaling, output))


@kernel
def _attend_heads(
    member: Any, query: Any, keys: Any, values: Any, first_query: Any, window_tokens: Any, scaling: Any, output: Any
) -> None:
    num_kv_heads, num_groups, num_queries, head_dim = query.shape
    num_keys, value_head_dim = keys.shape[1], values.shape[2]
    num_panels = -(-num_keys // TILE_COLUMNS)
    turned = np.zeros((num_panels * head_dim, TILE_COLUMNS), np.float32)
    padded = np.zeros((num_keys, -(-value_head_dim // TILE_COLUMNS) * TILE_COLUMNS), np.float32)
    rows = np.zeros((_QUERIES, head_dim), np.float32)
    scores = np.zeros((_QUERIES, _KEYS), np.float32)
    sums = np.zeros((_QUERIES, padded.shape[1]), np.float32)
    highest, totals = np.empty(_QUERIES, np.float32), np.empty(_QUERIES, np.float32)
    first_head, end_head = share(num_kv_heads * num_groups, 1, member)
    for head in range(first_head, end_head):
        kv_head, group = divmod(head, num_groups)
        if group == 0 or head == first_head:
            _lay_out(keys[kv_head], values[kv_head], turned, padded)
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

    `rows`: [_QUERIES, head_dim], scaled. `keys`: panels, as `_lay_out` writes them. `values`: [num_keys, padded
    head_dim]. `span`: position of the first query, queries, window. `state`: scores [_QUERIES, _KEYS]; and of each
    query the sum of values by their weights, the highest score, and the sum of weights.
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
