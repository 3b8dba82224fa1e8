"""The Triton kernels that draw a token from each row of logits, in float64 and in two readings of the row.

Source: inverse transform sampling; sums run in order of token ids, as `runners.drawing.draw_tokens` has them.
"""

from __future__ import annotations

import triton
import triton.language as tl


# fmt: off
@triton.jit
def sum_chunks(logits, best, temperatures, sums, SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, CHUNK: tl.constexpr):
    """Write what each chunk of a row weighs, unless nothing is drawn from it; tensors as in `pick_tokens`."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + row)
    if temperature != 0:
        weights = _weights(logits + row * SIZE, tl.load(best + row), temperature, chunk, SIZE, CHUNK)
        tl.store(sums + row * NUM_CHUNKS + chunk, tl.sum(weights, 0))


@triton.jit
def pick_tokens(
    logits, best, temperatures, uniforms, sums, chosen,
    SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, PADDED_CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):
    """Write the token of a row at which the cumulated weights pass its share of their sum.

    Interval table: tokens before chunk * CHUNK weigh `below` together; the first chunk whose end passes `wanted` holds
    the token.

    Tensors:
        logits: [num_rows, SIZE], contiguous.
        best: Most probable tokens, [num_rows], int64; what is negative stays as it is.
        temperatures, uniforms: [num_rows], float64; temperature 0: the most probable token.
        sums: [num_rows, NUM_CHUNKS], float64.
        chosen: [num_rows], int64.
    """
    row = tl.program_id(0).to(tl.int64)
    highest, temperature = tl.load(best + row), tl.load(temperatures + row)
    result = highest
    if (temperature != 0) & (highest >= 0):
        index = tl.arange(0, PADDED_CHUNKS)
        own = tl.load(sums + row * NUM_CHUNKS + index, mask=index < NUM_CHUNKS, other=0.0)
        ends = tl.cumsum(own, 0)
        wanted = tl.load(uniforms + row) * tl.max(ends, 0)
        last_chunk = tl.max(tl.where(own > 0, index, 0), 0)
        chunk = tl.minimum(tl.sum((ends <= wanted).to(tl.int32), 0), last_chunk)
        below = tl.sum(tl.where(index < chunk, own, 0.0), 0)
        weights = _weights(logits + row * SIZE, highest, temperature, chunk, SIZE, CHUNK)
        place = tl.arange(0, CHUNK)
        num_below = tl.sum((below + tl.cumsum(weights, 0) <= wanted).to(tl.int32), 0)
        drawn = chunk * CHUNK + tl.minimum(num_below, tl.max(tl.where(weights > 0, place, 0), 0))
        result = drawn.to(tl.int64)
    tl.store(chosen + row, result)
# fmt: on


@triton.jit
def _weights(row, best, temperature, chunk, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """Return what the tokens of a chunk weigh, the most probable one of the row 1: [CHUNK], float64."""
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    highest = tl.load(row + tl.maximum(best, 0)).to(tl.float64)
    logits = tl.load(row + token, mask=token < SIZE, other=float("-inf")).to(tl.float64)
    return tl.exp((logits - highest) / temperature)
