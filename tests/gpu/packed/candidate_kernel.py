"""A product of few rows that no device has run yet: each warp of a program takes blocks of inputs of its own.

Beside `packed_kernel.multiply`, which is served: programs of few rows need no split of the inputs over programs, hence
no sums through memory; nothing is loaded before the first fetch (the mark is a constant that PTX joins); and a launch
may begin before the one ahead of it has ended (EARLY). Exact where it is interpreted, and compiled for sm_90a by Triton
3.6.0 without spills. `gpu.packed.sweep` decides; what wins takes the place of `packed_kernel.multiply`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from baton.engine.runners.torch.ops.cuda.packed_kernel import _moved, _scale


# fmt: off
@triton.jit(do_not_specialize=["num_rows", "num_splits", "split_steps"])
def multiply(
    rows, again, words, scales, bias, output, parts, arrivals, num_rows, row_stride, num_splits, split_steps,
    NUM_INPUTS: tl.constexpr, NUM_OUTPUTS: tl.constexpr, NUM_BLOCKS: tl.constexpr, WORDS: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, CODES: tl.constexpr, SCALES: tl.constexpr, HAS_BIAS: tl.constexpr,
    MARK: tl.constexpr, MARK_BITS: tl.constexpr, JOIN: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_BLOCKS: tl.constexpr,
    IS_SPLIT: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr = False
):
    """Multiply TILE_ROWS rows by TILE_OUTPUTS outputs of a weight, TILE_BLOCKS blocks of its inputs beside each other.

    Where MARK is not 0, codes themselves are multiplied, joined to the bits of a 16-bit float MARK, whose last bits are
    a whole number; a group's scale multiplies their sum, and its bias, less MARK times the scale, that of the inputs.
    Both are products of matrices, so that what each asks of memory is fetched ahead: hence `rows` twice. A split of the
    inputs is `split_steps` times TILE_BLOCKS blocks; the last split to arrive adds up what all have, in their order,
    and leaves `arrivals` at 0 for the next product.

    Tensors:
        rows: [num_rows, NUM_INPUTS], elements of a row adjacent; again: the same.
        words, scales: See `_numbers`.
        bias: [NUM_OUTPUTS]; read where HAS_BIAS.
        output: [num_rows, NUM_OUTPUTS], contiguous.
        parts: [num_splits, num_rows, NUM_OUTPUTS], float32; written where IS_SPLIT.
        arrivals: [tiles of rows, tiles of outputs], int32, zeros.
    """
    tile, split, row_tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    PAIRS: tl.constexpr = 16 // BITS
    GROUP_PAIRS: tl.constexpr = GROUP // (2 * WORDS) if GROUP < 2 * PAIRS * WORDS else PAIRS
    NUM_STEPS: tl.constexpr = (NUM_BLOCKS + TILE_BLOCKS - 1) // TILE_BLOCKS
    out, row = tile * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS), row_tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
    is_out, is_row = out < NUM_OUTPUTS, row < num_rows
    word, column = tl.arange(0, WORDS), tl.arange(0, 2 * WORDS)
    if EARLY:  # nothing of the launch ahead has been read yet
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    zeros = _full(0.0, TILE_BLOCKS, TILE_OUTPUTS, TILE_ROWS, tl.float32)
    ones = _full(1.0, TILE_BLOCKS, TILE_OUTPUTS, 2 * WORDS, rows.dtype.element_ty)
    total = zeros
    for step in tl.range(split * split_steps, tl.minimum(NUM_STEPS, (split + 1) * split_steps), num_stages=STAGES):
        block = step * TILE_BLOCKS  # a number, or those of all: [TILE_BLOCKS, 1]
        if TILE_BLOCKS > 1:
            block += tl.arange(0, TILE_BLOCKS)[:, None]
        is_read = is_out & (block < NUM_BLOCKS)
        own = tl.expand_dims(block * NUM_OUTPUTS + out, -1) * WORDS + word
        packed = tl.load(words + own, mask=tl.expand_dims(is_read, -1), other=0).to(tl.uint32, bitcast=True)
        for group in tl.static_range(PAIRS // GROUP_PAIRS):
            first, second = _scale(scales, block, group * GROUP_PAIRS, out, is_read,
                                   NUM_OUTPUTS, WORDS, BITS, GROUP, SCALES)
            by_codes, inputs = zeros, zeros
            for pair in tl.static_range(GROUP_PAIRS):
                own_column = tl.expand_dims((block * PAIRS + group * GROUP_PAIRS + pair) * (2 * WORDS) + column, -1)
                place = row * row_stride + own_column
                is_input = is_row & (own_column < NUM_INPUTS)
                own_rows = tl.load(rows + place, mask=is_input, other=0.0)
                if MARK > 0:
                    codes = _marked(packed, group * GROUP_PAIRS + pair, BITS, MARK_BITS, JOIN, own_rows.dtype)
                    by_codes = tl.dot(codes, own_rows, by_codes)
                    inputs = tl.dot(ones, tl.load(again + place, mask=is_input, other=0.0), inputs)
                else:
                    weight = _numbers(packed, first, second, group * GROUP_PAIRS + pair, BITS, CODES)
                    total = tl.dot(weight.to(own_rows.dtype), own_rows, total, input_precision="ieee")
            if MARK > 0:
                total += by_codes * tl.expand_dims(first, -1)
                total += inputs * tl.expand_dims(second - MARK * first, -1)

    result = tl.sum(total, 0) if TILE_BLOCKS > 1 else total
    is_own = is_out[:, None] & is_row[None, :]
    place_of = row[None, :] * NUM_OUTPUTS + out[:, None]
    if IS_SPLIT:
        tl.store(parts + split * num_rows * NUM_OUTPUTS + place_of, result, mask=is_own)
        tl.debug_barrier()  # all of it is written before the arrival is told
        arrival = arrivals + row_tile * tl.num_programs(0) + tile
        is_last = tl.atomic_add(arrival, 1) == num_splits - 1
        if is_last:
            result = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
            for part in range(num_splits):
                own_parts = parts + part * num_rows * NUM_OUTPUTS + place_of
                result += tl.load(own_parts, mask=is_own, other=0.0, cache_modifier=".cg")
            tl.store(arrival, 0)
        is_own = is_own & is_last
    if HAS_BIAS:
        result += tl.load(bias + out, mask=is_out, other=0.0).to(tl.float32)[:, None]
    tl.store(output + place_of, result.to(output.dtype.element_ty), mask=is_own)


@triton.jit
def _numbers(words, first, second, PAIR: tl.constexpr, BITS: tl.constexpr, CODES: tl.constexpr):
    """Return the numbers of a pair of places, float32: [blocks, outputs, 2 * WORDS], one of each in turn.

    `first` and `second` are what the scale of a group says. A whole number is read where it lies, as a float32 above
    2^23, whose last 23 bits are one: the exponent is joined to a word once, and each code takes one instruction.
    """
    return _joined(_numbers_of_place(words, first, second, PAIR, BITS, CODES),
                   _numbers_of_place(words, first, second, PAIR + 16 // BITS, BITS, CODES))


@triton.jit
def _marked(
    words, PAIR: tl.constexpr, BITS: tl.constexpr, MARK_BITS: tl.constexpr, JOIN: tl.constexpr, DTYPE: tl.constexpr
):
    """Return the codes of a pair of places, each joined to a mark: [blocks, outputs, 2 * WORDS], of 16 bits.

    `JOIN` says in PTX what is computed where it is empty: for two constants ptxas takes two instructions.
    """
    shifted = words >> BITS * PAIR
    if JOIN == "":
        marked = shifted & ((1 << BITS) - 1) * 0x10001 | MARK_BITS
    else:
        marked = tl.inline_asm_elementwise(JOIN, "=r,r", [shifted], dtype=tl.uint32, is_pure=True, pack=1)
    low, high = (marked & 0xFFFF).to(tl.uint16), (marked >> 16).to(tl.uint16)
    return _joined(low.to(DTYPE, bitcast=True), high.to(DTYPE, bitcast=True))


@triton.jit
def _joined(low, high):
    """Return what each word has in its lower half and in its upper one, beside each other."""
    return tl.reshape(tl.join(low, high), low.shape[:-1] + [2 * low.shape[-1]])  # noqa: RUF005 - Triton unpacks no list


@triton.jit
def _full(value: tl.constexpr, BLOCKS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """Return a matrix for each block; of one block a matrix alone, which more kinds of instructions multiply."""
    return tl.full([BLOCKS, HEIGHT, WIDTH] if BLOCKS > 1 else [HEIGHT, WIDTH], value, DTYPE)


@triton.jit
def _numbers_of_place(words, first, second, PLACE: tl.constexpr, BITS: tl.constexpr, CODES: tl.constexpr):
    """Return the numbers of one place: [blocks, outputs, WORDS]."""
    if CODES == "affine":
        DOWN: tl.constexpr = 0 if BITS * (PLACE + 1) <= 23 else 16
        GROWN: tl.constexpr = 1 << (BITS * PLACE - DOWN)
        marked = (words >> DOWN) & 0x00FFFFFF | 0x4B000000
        code = marked & ((1 << BITS) - 1) * GROWN + 0x7F000000
        whole = code.to(tl.float32, bitcast=True) - 8388608.0
        number = whole * tl.expand_dims(first * (1.0 / GROWN), -1) + tl.expand_dims(second, -1)
    elif CODES == "e4m3":
        bits = _moved(words, 24 - BITS * PLACE) & 0x80000000 | _moved(words, 20 - BITS * PLACE) & 0x07F00000
        number = bits.to(tl.float32, bitcast=True) * (2.0 ** 120) * tl.expand_dims(first, -1)
    else:
        bits = _moved(words, 28 - BITS * PLACE) & 0x80000000 | _moved(words, 22 - BITS * PLACE) & 0x01C00000
        number = bits.to(tl.float32, bitcast=True) * (2.0 ** 126) * tl.expand_dims(first, -1)
    return number
# fmt: on
