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
@triton.jit(do_not_specialize=["table_stride", "num_splits"])
def attend_tile(
    query, keys, values, output, sinks, part_outputs, part_maxima, part_sums,
    tables, ends, first_rows, tile_sequences, tile_first_queries, scaling,
    query_row_stride, query_head_stride, key_head_stride, value_head_stride, table_stride, num_heads, num_splits,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    PADDED_HEAD_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr,
    TILE_QUERIES: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr, IS_SPLIT: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, HAS_SINKS: tl.constexpr
):
    """Attend from TILE_QUERIES queries of a sequence, of all query heads of one KV head, to one split of its keys.

    Interval table, in positions of the sequence: its queries are [start, end); this tile's are [start + first_query,
    start + first_query + TILE_QUERIES), cut at end; keys [0, low) are outside every window of the tile and [high, end)
    after its last query; the tiles of TILE_KEYS keys in [low, high) are shared out among the splits.

    Tensors:
        query: [num_rows, num_heads, HEAD_DIM], elements of a head adjacent.
        keys: [num_kv_heads, num_blocks, BLOCK_TOKENS, HEAD_DIM]; values likewise with VALUE_DIM.
        output: [num_rows, num_heads, VALUE_DIM], contiguous; written unless IS_SPLIT.
        sinks: [num_heads]; read where HAS_SINKS, unless IS_SPLIT.
        part_outputs: [num_rows, num_heads, num_splits, VALUE_DIM], float32; written where IS_SPLIT, as are part_maxima
            and part_sums, [num_rows, num_heads, num_splits], float32.
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
    tiles_per_split = tl.cdiv(num_key_tiles, num_splits)
    first_key_tile = split * tiles_per_split
    key_base, value_base = kv_head.to(tl.int64) * key_head_stride, kv_head.to(tl.int64) * value_head_stride
    maximum, total = tl.full([TILE_ROWS], float("-inf"), tl.float32), tl.zeros([TILE_ROWS], tl.float32)
    attended = tl.zeros([TILE_ROWS, PADDED_VALUE_DIM], tl.float32)
    for key_tile in range(first_key_tile, tl.minimum(num_key_tiles, first_key_tile + tiles_per_split)):
        key = low + key_tile * TILE_KEYS + tl.arange(0, TILE_KEYS)
        is_key = key < high
        block = tl.load(tables + sequence * table_stride + key // BLOCK_TOKENS, mask=is_key, other=0).to(tl.int64)
        slot = block * BLOCK_TOKENS + key % BLOCK_TOKENS
        k = tl.load(keys + (key_base + slot * HEAD_DIM)[None, :] + key_dim[:, None],
                    mask=is_key[None, :] & (key_dim < HEAD_DIM)[:, None], other=0.0)
        is_seen = is_row[:, None] & is_key[None, :] & (key[None, :] <= position[:, None])
        if WINDOW > 0:
            is_seen = is_seen & (key[None, :] > position[:, None] - WINDOW)
        scores = _scores(q, k, is_seen, scaling, SOFT_CAP)
        weights, shrink, maximum, total = _weigh(scores, maximum, total)
        v = tl.load(values + (value_base + slot * VALUE_DIM)[:, None] + value_dim[None, :],
                    mask=is_key[:, None] & (value_dim < VALUE_DIM)[None, :], other=0.0)
        attended = tl.dot(weights.to(v.dtype), v, attended * shrink[:, None], input_precision="ieee")

    is_output = is_row[:, None] & (value_dim < VALUE_DIM)[None, :]
    if not IS_SPLIT:
        if HAS_SINKS:
            shrink, total = _add_sink(tl.load(sinks + head, mask=is_row, other=0.0), maximum, total)
            attended = attended * shrink[:, None]
        result = attended / tl.where(total == 0, 1.0, total)[:, None]
        place = output + (row * num_heads + head)[:, None] * VALUE_DIM + value_dim[None, :]
        tl.store(place, result.to(output.dtype.element_ty), mask=is_output)
    else:
        part = (row * num_heads + head) * num_splits + split
        tl.store(part_maxima + part, maximum, mask=is_row)
        tl.store(part_sums + part, total, mask=is_row)
        tl.store(part_outputs + part[:, None] * VALUE_DIM + value_dim[None, :], attended, mask=is_output)


@triton.jit(do_not_specialize=["num_splits"])
def join_splits(
    output, sinks, part_outputs, part_maxima, part_sums, num_heads, num_splits,
    VALUE_DIM: tl.constexpr, PADDED_VALUE_DIM: tl.constexpr, MAX_SPLITS: tl.constexpr, HAS_SINKS: tl.constexpr
):
    """Weigh what the splits of one row and head attended to against each other; tensors as in `attend_tile`."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, value_dim = tl.arange(0, MAX_SPLITS), tl.arange(0, PADDED_VALUE_DIM)
    is_value, is_split = value_dim < VALUE_DIM, split < num_splits
    part = (row * num_heads + head) * num_splits + split

    maxima = tl.load(part_maxima + part, mask=is_split, other=float("-inf"))
    maximum = tl.max(maxima, 0)
    shares = tl.exp2(maxima - tl.where(maximum == float("-inf"), 0.0, maximum))
    total = tl.sum(tl.load(part_sums + part, mask=is_split, other=0.0) * shares, 0)
    parts = tl.load(part_outputs + part[:, None] * VALUE_DIM + value_dim[None, :],
                    mask=is_split[:, None] & is_value[None, :], other=0.0)
    attended = tl.sum(parts * shares[:, None], 0)
    if HAS_SINKS:
        shrink, total = _add_sink(tl.load(sinks + head), maximum, total)
        attended = attended * shrink
    result = attended / tl.where(total == 0, 1.0, total)
    offset = (row * num_heads + head) * VALUE_DIM + value_dim
    tl.store(output + offset, result.to(output.dtype.element_ty), mask=is_value)
# fmt: on


@triton.jit
def _scores(q, k, is_seen, scaling, SOFT_CAP: tl.constexpr):
    """Return scores in powers of 2, -inf where a query does not see a key: [TILE_ROWS, TILE_KEYS], float32."""
    scores = tl.dot(q, k, input_precision="ieee")
    if SOFT_CAP > 0:
        scores = SOFT_CAP * (2 * tl.sigmoid(2 * scaling / SOFT_CAP * scores) - 1) * LOG2_E  # a hyperbolic tangent
    else:
        scores *= scaling * LOG2_E
    return tl.where(is_seen, scores, float("-inf"))


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
