"""The Triton kernels of paged attention.

One program attends from one tile of queries of one sequence and KV head to one share of that sequence's keys. The query
heads of a KV head stand below each other in a tile, so that decode, too, multiplies matrices. Lengths and tables are
read on the device: what is launched depends on the number of tiles alone, and a CUDA graph replays for any lengths.
Source: FlashAttention-2 (Dao, 2023) for the running softmax; Flash-Decoding (Dao et al., 2023) for the split of keys.
"""

from __future__ import annotations

from baton.errors import ConfigurationError
from baton.installation import install_line

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ConfigurationError(f"torch on CUDA needs triton for its attention: {install_line('cuda')}") from error

LOG2_E = tl.constexpr(1.4426950408889634)


# fmt: off
@triton.jit
def attend_tile(
    query, keys, values, output, sinks, part_outputs, part_maxima, part_sums,
    tables, ends, first_rows, tile_sequences, tile_first_queries,
    scaling, query_row_stride, query_head_stride, key_head_stride, value_head_stride, table_stride, num_heads,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    PADDED_HEAD_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    TILE_QUERIES: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr, NUM_SPLITS: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, HAS_SINKS: tl.constexpr
):
    """Attend from TILE_QUERIES queries of a sequence, of all query heads of one KV head, to one split of its keys.

    Interval table, in positions of the sequence: its queries are [start, end); this tile's are [start + first_query,
    start + first_query + TILE_QUERIES), cut at end; keys [0, low) are outside every window of the tile and [high, end)
    after its last query; the tiles of TILE_KEYS keys in [low, high) are shared out among the splits; those before
    first_masked every query of the tile sees.

    Tensors:
        query: [num_rows, num_heads, HEAD_DIM], elements of a head adjacent.
        keys: [num_kv_heads, num_blocks, BLOCK_TOKENS, HEAD_DIM]; values likewise with VALUE_DIM.
        output: [num_rows, num_heads, VALUE_DIM], contiguous; written where NUM_SPLITS is 1.
        sinks: [num_heads]; read where HAS_SINKS and NUM_SPLITS is 1.
        part_outputs: [num_rows, num_heads, NUM_SPLITS, VALUE_DIM], float32; written where NUM_SPLITS is above 1, as
            are part_maxima and part_sums, [num_rows, num_heads, NUM_SPLITS], float32.
        tables: Blocks, [num_sequences, max_blocks], int32.
        ends: Position after the last query, [num_sequences], int32; 0: nothing is there to attend to.
        first_rows: Row of the first query, and after the last sequence's last one: [num_sequences + 1], int32.
        tile_sequences: [num_tiles], int32; tile_first_queries likewise, counted from the sequence's first.
        scaling: Factor of the scores.
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    sequence, first_query = tl.load(tile_sequences + tile), tl.load(tile_first_queries + tile)
    first_row, end = tl.load(first_rows + sequence), tl.load(ends + sequence)
    num_queries = tl.load(first_rows + sequence + 1) - first_row
    start = end - num_queries
    tile_row = tl.arange(0, TILE_ROWS)
    key_dim, value_dim = tl.arange(0, PADDED_HEAD_DIM), tl.arange(0, PADDED_VALUE_DIM)
    tile_query = first_query + tile_row // GROUP
    row, head = (first_row + tile_query).to(tl.int64), kv_head * GROUP + tile_row % GROUP
    is_row = (tile_row < TILE_QUERIES * GROUP) & (tile_query < num_queries)
    position = start + tile_query
    q = tl.load(query + (row * query_row_stride + head * query_head_stride)[:, None] + key_dim[None, :],
                mask=is_row[:, None] & (key_dim < HEAD_DIM)[None, :], other=0.0)

    high = tl.minimum(end, start + first_query + TILE_QUERIES)
    low = tl.maximum(0, start + first_query - WINDOW + 1) // TILE_KEYS * TILE_KEYS if WINDOW > 0 else 0
    num_key_tiles = tl.cdiv(high - low, TILE_KEYS)
    tiles_per_split = tl.cdiv(num_key_tiles, NUM_SPLITS)
    first_tile = split * tiles_per_split
    end_tile = tl.minimum(num_key_tiles, first_tile + tiles_per_split)
    num_seen_by_all = 0 if WINDOW > 0 else (start + first_query + 1) // TILE_KEYS
    first_masked = tl.maximum(first_tile, tl.minimum(end_tile, num_seen_by_all))
    key_base, value_base = kv_head.to(tl.int64) * key_head_stride, kv_head.to(tl.int64) * value_head_stride
    running = (tl.zeros([TILE_ROWS, PADDED_VALUE_DIM], tl.float32),
               tl.full([TILE_ROWS], float("-inf"), tl.float32), tl.zeros([TILE_ROWS], tl.float32))
    source = (keys + key_base, values + value_base, tables + sequence * table_stride, low, high)
    rows = (q, position, is_row, scaling)
    running = _attend_keys(source, rows, running, first_tile, first_masked, HEAD_DIM, VALUE_DIM, BLOCK_TOKENS,
                           PADDED_HEAD_DIM, PADDED_VALUE_DIM, TILE_KEYS, WINDOW, SOFT_CAP, False)
    running = _attend_keys(source, rows, running, first_masked, end_tile, HEAD_DIM, VALUE_DIM, BLOCK_TOKENS,
                           PADDED_HEAD_DIM, PADDED_VALUE_DIM, TILE_KEYS, WINDOW, SOFT_CAP, True)
    attended, maximum, total = running

    is_output = is_row[:, None] & (value_dim < VALUE_DIM)[None, :]
    if NUM_SPLITS == 1:
        if HAS_SINKS:
            shrink, total = _add_sink(tl.load(sinks + head, mask=is_row, other=0.0), maximum, total)
            attended = attended * shrink[:, None]
        result = attended / tl.where(total == 0, 1.0, total)[:, None]
        place = output + (row * num_heads + head)[:, None] * VALUE_DIM + value_dim[None, :]
        tl.store(place, result.to(output.dtype.element_ty), mask=is_output)
    else:
        part = (row * num_heads + head) * NUM_SPLITS + split
        tl.store(part_maxima + part, maximum, mask=is_row)
        tl.store(part_sums + part, total, mask=is_row)
        tl.store(part_outputs + part[:, None] * VALUE_DIM + value_dim[None, :], attended, mask=is_output)


@triton.jit
def join_splits(
    output, sinks, part_outputs, part_maxima, part_sums, num_heads,
    VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr, HAS_SINKS: tl.constexpr
):
    """Weigh what the splits of one row and head attended to against each other; tensors as in `attend_tile`."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, value_dim = tl.arange(0, NUM_SPLITS), tl.arange(0, PADDED_VALUE_DIM)
    is_value = value_dim < VALUE_DIM
    part = (row * num_heads + head) * NUM_SPLITS + split

    maxima = tl.load(part_maxima + part)
    maximum = tl.max(maxima, 0)
    shares = tl.exp2(maxima - tl.where(maximum == float("-inf"), 0.0, maximum))
    total = tl.sum(tl.load(part_sums + part) * shares, 0)
    parts = tl.load(part_outputs + part[:, None] * VALUE_DIM + value_dim[None, :], mask=is_value[None, :], other=0.0)
    attended = tl.sum(parts * shares[:, None], 0)
    if HAS_SINKS:
        shrink, total = _add_sink(tl.load(sinks + head), maximum, total)
        attended = attended * shrink
    result = attended / tl.where(total == 0, 1.0, total)
    offset = (row * num_heads + head) * VALUE_DIM + value_dim
    tl.store(output + offset, result.to(output.dtype.element_ty), mask=is_value)
# fmt: on


# fmt: off
@triton.jit
def _attend_keys(
    source, rows, running, first_tile, end_tile,
    HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    PADDED_HEAD_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr, TILE_KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, IS_MASKED: tl.constexpr
):
    """Attend to the tiles of keys [first_tile, end_tile); without a mask, every query must see all of them.

    `running` and what is returned: values attended to [TILE_ROWS, PADDED_VALUE_DIM], maxima and sums [TILE_ROWS].
    """
    keys, values, table, low, high = source
    q, position, is_row, scaling = rows
    attended, maximum, total = running
    key_dim, value_dim = tl.arange(0, PADDED_HEAD_DIM), tl.arange(0, PADDED_VALUE_DIM)
    for key_tile in range(first_tile, end_tile):
        key = low + key_tile * TILE_KEYS + tl.arange(0, TILE_KEYS)
        is_key = key < high if IS_MASKED else key >= 0
        block = tl.load(table + key // BLOCK_TOKENS, mask=is_key, other=0).to(tl.int64)
        slot = block * BLOCK_TOKENS + key % BLOCK_TOKENS
        k = _load(keys + (slot * HEAD_DIM)[None, :] + key_dim[:, None], is_key[None, :],
                  (key_dim < HEAD_DIM)[:, None], IS_MASKED, HEAD_DIM < PADDED_HEAD_DIM)
        scores = _scores(q, k, scaling, SOFT_CAP)
        if IS_MASKED:
            is_seen = is_row[:, None] & is_key[None, :] & (key[None, :] <= position[:, None])
            if WINDOW > 0:
                is_seen = is_seen & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(is_seen, scores, float("-inf"))
        weights, shrink, maximum, total = _weigh(scores, maximum, total)
        v = _load(values + (slot * VALUE_DIM)[:, None] + value_dim[None, :], is_key[:, None],
                  (value_dim < VALUE_DIM)[None, :], IS_MASKED, VALUE_DIM < PADDED_VALUE_DIM)
        attended = tl.dot(weights.to(v.dtype), v, attended * shrink[:, None], input_precision="ieee")
    return attended, maximum, total
# fmt: on


@triton.jit
def _load(place, is_key, is_dim, IS_MASKED: tl.constexpr, IS_PADDED: tl.constexpr):
    """Return keys or values, 0 where there are none."""
    if IS_MASKED:
        result = tl.load(place, mask=is_key & is_dim, other=0.0)
    elif IS_PADDED:
        result = tl.load(place, mask=is_dim, other=0.0)
    else:
        result = tl.load(place)
    return result


@triton.jit
def _scores(q, k, scaling, SOFT_CAP: tl.constexpr):
    """Return scores in powers of 2: [TILE_ROWS, TILE_KEYS], float32."""
    scores = tl.dot(q, k, input_precision="ieee")
    if SOFT_CAP > 0:
        capped = SOFT_CAP * (2 * tl.sigmoid(2 * (scores * scaling) / SOFT_CAP) - 1)  # a hyperbolic tangent
        result = capped * LOG2_E
    else:
        result = scores * (scaling * LOG2_E)
    return result


@triton.jit
def _weigh(scores, maximum, total):
    """Return the scores' weights and what earlier ones shrink by; then the running maximum and sum of weights."""
    higher = tl.maximum(maximum, tl.max(scores, 1))
    finite = tl.where(higher == float("-inf"), 0.0, higher)  # a row may have seen no key so far
    weights = tl.exp2(scores - finite[:, None])
    shrink = tl.exp2(maximum - finite)
    return weights, shrink, higher, total * shrink + tl.sum(weights, 1)


@triton.jit
def _add_sink(sink, maximum, total):
    """Return what the values attended to shrink by, and the sum of weights with that of the sink."""
    sink = sink.to(tl.float32) * LOG2_E
    higher = tl.maximum(maximum, sink)
    shrink = tl.exp2(maximum - higher)
    return shrink, total * shrink + tl.exp2(sink - higher)
