"""The Triton kernels that choose a token from each row of logits: drawn in float64, in two readings of the row.

Source: inverse transform sampling; sums run in order of token ids, as `runners.drawing.draw_tokens` has them.
"""

from __future__ import annotations

import triton
import triton.language as tl


# fmt: off
@triton.jit
def weigh_chunks(
    logits, temperatures, highest, places, sums, SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):
    """Write the highest logit of each chunk of a row, where it is, and what the chunk weighs if a token is drawn.

    Tensors as in `pick_tokens`.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token, temperature = chunk * CHUNK + tl.arange(0, CHUNK), tl.load(temperatures + row)
    own = _chunk(logits + row * SIZE, token, SIZE)
    maximum = tl.max(own, 0)
    tl.store(highest + row * NUM_CHUNKS + chunk, maximum)
    tl.store(places + row * NUM_CHUNKS + chunk, tl.min(tl.where(own == maximum, token, SIZE), 0))
    if temperature != 0:
        tl.store(sums + row * NUM_CHUNKS + chunk, tl.sum(_weights(own, maximum, temperature), 0))


@triton.jit
def pick_tokens(
    logits, temperatures, uniforms, highest, places, sums, chosen, NOT_FINITE: tl.constexpr,
    SIZE: tl.constexpr, NUM_CHUNKS: tl.constexpr, PADDED_CHUNKS: tl.constexpr, CHUNK: tl.constexpr
):
    """Write the token of a row at which the cumulated weights pass its share of their sum.

    Interval table: tokens before chunk * CHUNK weigh `below` together; the first chunk whose end passes `wanted` holds
    the token. A chunk weighs its tokens by its own highest logit, and is weighed by that.

    Tensors:
        logits: [num_rows, SIZE], contiguous.
        temperatures, uniforms: [num_rows], float64; temperature 0: the most probable token, the smallest of equals.
        highest, places, sums: [num_rows, NUM_CHUNKS], float32, int32, float64.
        chosen: [num_rows], int64; NOT_FINITE where the highest logit is not finite.
    """
    row = tl.program_id(0).to(tl.int64)
    temperature, index = tl.load(temperatures + row), tl.arange(0, PADDED_CHUNKS)
    is_chunk, base = index < NUM_CHUNKS, row * NUM_CHUNKS
    maxima = tl.load(highest + base + index, mask=is_chunk, other=float("-inf"))
    maximum = tl.max(maxima, 0)
    is_finite = tl.abs(maximum) < float("inf")
    best = tl.load(places + base + tl.min(tl.where(is_chunk & (maxima == maximum), index, NUM_CHUNKS - 1), 0))
    result = tl.where(is_finite, best, NOT_FINITE).to(tl.int64)
    if (temperature != 0) & is_finite:
        shares = _weights(maxima, maximum, temperature)
        own = tl.load(sums + base + index, mask=is_chunk, other=0.0) * shares
        ends = tl.cumsum(own, 0)
        wanted = tl.load(uniforms + row) * tl.max(ends, 0)
        last_chunk = tl.max(tl.where(own > 0, index, 0), 0)
        chunk = tl.minimum(tl.sum((ends <= wanted).to(tl.int32), 0), last_chunk)
        below = tl.sum(tl.where(index < chunk, own, 0.0), 0)
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        share = tl.sum(tl.where(index == chunk, shares, 0.0), 0)
        weights = _weights(_chunk(logits + row * SIZE, token, SIZE), tl.load(highest + base + chunk), temperature)
        num_below = tl.sum((below + share * tl.cumsum(weights, 0) <= wanted).to(tl.int32), 0)
        result = tl.minimum(chunk * CHUNK + num_below, tl.max(tl.where(weights > 0, token, 0), 0)).to(tl.int64)
    tl.store(chosen + row, result)
# fmt: on


@triton.jit
def _chunk(row, token, SIZE: tl.constexpr):
    """Return the logits of a chunk, NaN as infinity: [CHUNK], float32."""
    own = tl.load(row + token, mask=token < SIZE, other=float("-inf")).to(tl.float32)
    return tl.where(own == own, own, float("inf"))


@triton.jit
def _weights(logits, highest, temperature):
    """Return what logits weigh, the highest 1: float64; nothing where even that has no chance."""
    base = tl.where(highest == float("-inf"), 0.0, highest).to(tl.float64)
    return tl.exp((logits.to(tl.float64) - base) / temperature)
