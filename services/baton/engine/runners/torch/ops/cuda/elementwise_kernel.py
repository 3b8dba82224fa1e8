"""The Triton kernels for what lies between a layer's products; arithmetic in float32, one rounding at the end."""

from __future__ import annotations

import triton
import triton.language as tl


# fmt: off
@triton.jit(do_not_specialize=["num_rows"])
def rotate_and_store(
    heads, cosines, signed_sines, query_norm, key_norm, slots, queries, keys, values, copies,
    num_rows, row_stride, key_head_stride, value_head_stride, epsilon,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr, HAS_NORMS: tl.constexpr, IS_COPIED: tl.constexpr
):
    """Normalise and rotate one head of TILE_ROWS rows; queries go out, K and V into their slots.

    `heads` are queries, keys and values side by side, [num_rows, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM]; cosines and
    sines, the first half negated, [num_rows, HEAD_DIM]; norms are read where HAS_NORMS; slots are among the positions
    of all blocks, [num_rows], int64; keys and values [NUM_KV_HEADS, num_slots, HEAD_DIM]; copies of what they are given
    [2, NUM_KV_HEADS, num_rows, HEAD_DIM], written where IS_COPIED.
    """
    head = tl.program_id(1)
    tile_row = tl.program_id(0) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    row, dim = tile_row.to(tl.int64)[:, None], tl.arange(0, PADDED_DIM)
    is_row, is_dim = tile_row < num_rows, dim < HEAD_DIM
    is_element = is_row[:, None] & is_dim[None, :]
    source = heads + row * row_stride + head * HEAD_DIM
    own = tl.load(source + dim[None, :], mask=is_element, other=0.0)
    slot = tl.load(slots + tile_row, mask=is_row, other=0)[:, None] * HEAD_DIM + dim[None, :]
    copy = copies + ((head - NUM_HEADS) * num_rows + row) * HEAD_DIM + dim[None, :]
    if head >= NUM_HEADS + NUM_KV_HEADS:
        place = (head - NUM_HEADS - NUM_KV_HEADS).to(tl.int64) * value_head_stride + slot
        tl.store(values + place, own, mask=is_element)
        if IS_COPIED:
            tl.store(copy, own, mask=is_element)
    else:
        swapped_dim = (dim + HEAD_DIM // 2) % HEAD_DIM
        wide = own.to(tl.float32)
        swapped = tl.load(source + swapped_dim[None, :], mask=is_element, other=0.0).to(tl.float32)
        if HAS_NORMS:
            factor = tl.rsqrt(tl.sum(wide * wide, 1) / HEAD_DIM + epsilon)[:, None]
            norm = query_norm if head < NUM_HEADS else key_norm
            wide = wide * factor * tl.load(norm + dim, mask=is_dim, other=0.0).to(tl.float32)[None, :]
            swapped = swapped * factor * tl.load(norm + swapped_dim, mask=is_dim, other=0.0).to(tl.float32)[None, :]
        angle = row * HEAD_DIM + dim[None, :]
        cosine = tl.load(cosines + angle, mask=is_element, other=0.0).to(tl.float32)
        sine = tl.load(signed_sines + angle, mask=is_element, other=0.0).to(tl.float32)
        rotated = (wide * cosine + swapped * sine).to(own.dtype)
        if head < NUM_HEADS:
            tl.store(queries + (row * NUM_HEADS + head) * HEAD_DIM + dim[None, :], rotated, mask=is_element)
        else:
            tl.store(keys + (head - NUM_HEADS).to(tl.int64) * key_head_stride + slot, rotated, mask=is_element)
            if IS_COPIED:
                tl.store(copy, rotated, mask=is_element)


@triton.jit
def gate(gate_up, output, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Write SiLU of the gates times the others: [num_rows, SIZE] of [num_rows, 2 * SIZE], the gates first."""
    row = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_element = element < SIZE
    value = tl.load(gate_up + row * 2 * SIZE + element, mask=is_element, other=0.0).to(tl.float32)
    other = tl.load(gate_up + row * 2 * SIZE + SIZE + element, mask=is_element, other=0.0).to(tl.float32)
    tl.store(output + row * SIZE + element, (value * tl.sigmoid(value) * other).to(output.dtype.element_ty),
             mask=is_element)


@triton.jit
def add_and_normalise(
    hidden, delta, weight, total, normalised, epsilon, SIZE: tl.constexpr, PADDED_SIZE: tl.constexpr
):
    """Write hidden + delta, and the same divided by its root mean square times the weight: [num_rows, SIZE] each."""
    row = tl.program_id(0).to(tl.int64)
    element = tl.arange(0, PADDED_SIZE)
    is_element = element < SIZE
    place = row * SIZE + element
    added = tl.load(hidden + place, mask=is_element, other=0.0).to(tl.float32)
    added += tl.load(delta + place, mask=is_element, other=0.0).to(tl.float32)
    rounded = added.to(total.dtype.element_ty)
    tl.store(total + place, rounded, mask=is_element)
    wide = rounded.to(tl.float32)
    factor = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + epsilon)
    scaled = wide * factor * tl.load(weight + element, mask=is_element, other=0.0).to(tl.float32)
    tl.store(normalised + place, scaled.to(normalised.dtype.element_ty), mask=is_element)
# fmt: on
