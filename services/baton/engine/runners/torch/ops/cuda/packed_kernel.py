"""The Triton kernels for weights in few bits: products of few rows, weights in the rows' dtype, rows of an embedding.

`packed_weight.PackedWeight` says how words and scales lie. A pair of places of a block's words, in the lower half and
in the upper, is a matrix of neighbouring inputs that shifts and masks alone make. Numbers are formed in float32 as
their format says and rounded to the dtype of rows; or whole numbers are multiplied as they are, and nothing is rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl


# fmt: off
@triton.jit(do_not_specialize=["num_rows", "num_splits", "split_blocks"])
def multiply(
    rows, again, words, scales, marks, bias, output, parts, arrivals, num_rows, row_stride, num_splits, split_blocks,
    NUM_INPUTS: tl.constexpr, NUM_OUTPUTS: tl.constexpr, NUM_BLOCKS: tl.constexpr, WORDS: tl.constexpr,
    BITS: tl.constexpr, GROUP: tl.constexpr, CODES: tl.constexpr, SCALES: tl.constexpr, HAS_BIAS: tl.constexpr,
    BY_CODES: tl.constexpr, MARK: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr, TILE_ROWS: tl.constexpr, IS_SPLIT: tl.constexpr, STAGES: tl.constexpr
):
    """Multiply TILE_ROWS rows by TILE_OUTPUTS outputs of a weight, over `split_blocks` blocks of its inputs.

    BY_CODES, codes themselves are multiplied, joined to the bits of a 16-bit float MARK, whose last bits are a whole
    number; a group's scale multiplies their sum, and its bias, less MARK times the scale, that of the inputs. Both are
    products of matrices, so that what each asks of memory is fetched ahead: hence `rows` twice, and `marks`, which the
    compiler must not know lest it take an instruction of its own. The last split to arrive adds up what all have, in
    their order, and leaves `arrivals` at 0 for the next product.

    Tensors:
        rows: [num_rows, NUM_INPUTS], elements of a row adjacent; again: the same.
        words, scales: See `_numbers`.
        marks: The bits of MARK twice, [TILE_OUTPUTS], int32; read where BY_CODES.
        bias: [NUM_OUTPUTS]; read where HAS_BIAS.
        output: [num_rows, NUM_OUTPUTS], contiguous.
        parts: [num_splits, num_rows, NUM_OUTPUTS], float32; written where IS_SPLIT.
        arrivals: [tiles of rows, tiles of outputs], int32, zeros.
    """
    tile, split, row_tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    PAIRS: tl.constexpr = 16 // BITS
    GROUP_PAIRS: tl.constexpr = GROUP // (2 * WORDS) if GROUP < 2 * PAIRS * WORDS else PAIRS
    out, row = tile * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS), row_tile * TILE_ROWS + tl.arange(0, TILE_ROWS)
    is_out, is_row = out < NUM_OUTPUTS, row < num_rows
    word, column = tl.arange(0, WORDS), tl.arange(0, 2 * WORDS)
    first_block = split * split_blocks
    zeros = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
    total = zeros
    if BY_CODES:
        mark = tl.load(marks + tl.arange(0, TILE_OUTPUTS)).to(tl.uint32, bitcast=True)
        ones = tl.full([TILE_OUTPUTS, 2 * WORDS], 1.0, rows.dtype.element_ty)
    for block in tl.range(first_block, tl.minimum(NUM_BLOCKS, first_block + split_blocks), num_stages=STAGES):
        own = (block * NUM_OUTPUTS + out)[:, None] * WORDS + word[None, :]
        packed = tl.load(words + own, mask=is_out[:, None], other=0).to(tl.uint32, bitcast=True)
        for group in tl.static_range(PAIRS // GROUP_PAIRS):
            first, second = _scale(scales, block, group * GROUP_PAIRS, out, is_out,
                                   NUM_OUTPUTS, WORDS, BITS, GROUP, SCALES)
            by_codes, inputs = zeros, zeros
            for pair in tl.static_range(GROUP_PAIRS):
                own_column = (block * PAIRS + group * GROUP_PAIRS + pair) * 2 * WORDS + column
                place = row[None, :] * row_stride + own_column[:, None]
                is_input = is_row[None, :] & (own_column < NUM_INPUTS)[:, None]
                own_rows = tl.load(rows + place, mask=is_input, other=0.0)
                if BY_CODES:
                    codes = _marked(packed, mark[:, None], group * GROUP_PAIRS + pair, BITS, own_rows.dtype)
                    by_codes = tl.dot(codes, own_rows, by_codes)
                    inputs = tl.dot(ones, tl.load(again + place, mask=is_input, other=0.0), inputs)
                else:
                    weight = _numbers(packed, first, second, group * GROUP_PAIRS + pair, BITS, CODES)
                    total = tl.dot(weight.to(own_rows.dtype), own_rows, total, input_precision="ieee")
            if BY_CODES:
                total += by_codes * first[:, None]
                total += inputs * (second - MARK * first)[:, None]

    is_own = is_out[:, None] & is_row[None, :]
    place_of = row[None, :] * NUM_OUTPUTS + out[:, None]
    if IS_SPLIT:
        tl.store(parts + split * num_rows * NUM_OUTPUTS + place_of, total, mask=is_own)
        tl.debug_barrier()  # all of it is written before the arrival is told
        arrival = arrivals + row_tile * tl.num_programs(0) + tile
        is_last = tl.atomic_add(arrival, 1) == num_splits - 1
        if is_last:
            total = tl.zeros([TILE_OUTPUTS, TILE_ROWS], tl.float32)
            for part in range(num_splits):
                own = parts + part * num_rows * NUM_OUTPUTS + place_of
                total += tl.load(own, mask=is_own, other=0.0, cache_modifier=".cg")
            tl.store(arrival, 0)
        is_own = is_own & is_last
    if HAS_BIAS:
        total += tl.load(bias + out, mask=is_out, other=0.0).to(tl.float32)[:, None]
    tl.store(output + place_of, total.to(output.dtype.element_ty), mask=is_own)


@triton.jit(do_not_specialize=["first_output", "num_rows"])
def write(
    words, scales, chosen, target, first_output, num_rows,
    NUM_INPUTS: tl.constexpr, NUM_OUTPUTS: tl.constexpr, WORDS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    CODES: tl.constexpr, SCALES: tl.constexpr, IS_CHOSEN: tl.constexpr, TILE_OUTPUTS: tl.constexpr
):
    """Write a block of inputs of outputs, [num_rows, NUM_INPUTS], from one on; IS_CHOSEN: of those named, int64."""
    row, block = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS), tl.program_id(1)
    is_row = row < num_rows
    out = first_output + row
    if IS_CHOSEN:
        out = tl.load(chosen + row, mask=is_row, other=0).to(tl.int32)
    PAIRS: tl.constexpr = 16 // BITS
    word, column = tl.arange(0, WORDS), tl.arange(0, 2 * WORDS)
    own = (block.to(tl.int64) * NUM_OUTPUTS + out)[:, None] * WORDS + word[None, :]
    packed = tl.load(words + own, mask=is_row[:, None], other=0).to(tl.uint32, bitcast=True)
    for pair in tl.static_range(PAIRS):
        own_column = (block * PAIRS + pair) * 2 * WORDS + column
        first, second = _scale(scales, block, pair, out, is_row, NUM_OUTPUTS, WORDS, BITS, GROUP, SCALES)
        number = _numbers(packed, first, second, pair, BITS, CODES)
        tl.store(target + row.to(tl.int64)[:, None] * NUM_INPUTS + own_column[None, :],
                 number.to(target.dtype.element_ty), mask=is_row[:, None] & (own_column < NUM_INPUTS)[None, :])


@triton.jit
def _numbers(words, first, second, PAIR: tl.constexpr, BITS: tl.constexpr, CODES: tl.constexpr):
    """Return the numbers of a pair of places, float32: [outputs, 2 * WORDS], one of each place in turn.

    `first` and `second` are what the scale of a group says. A whole number is read where it lies, as a float32 above
    2^23, whose last 23 bits are one: the exponent is joined to a word once, and each code takes one instruction.
    """
    return _joined(_numbers_of_place(words, first, second, PAIR, BITS, CODES),
                   _numbers_of_place(words, first, second, PAIR + 16 // BITS, BITS, CODES))


@triton.jit
def _marked(words, mark, PAIR: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """Return the codes of a pair of places, each joined to a mark: [outputs, 2 * WORDS], of 16 bits."""
    marked = (words >> BITS * PAIR) & ((1 << BITS) - 1) * 0x10001 | mark
    low, high = (marked & 0xFFFF).to(tl.uint16), (marked >> 16).to(tl.uint16)
    return _joined(low.to(DTYPE, bitcast=True), high.to(DTYPE, bitcast=True))


@triton.jit
def _joined(low, high):
    """Return what each word has in its lower half and in its upper one, beside each other."""
    return tl.reshape(tl.join(low, high), [low.shape[0], 2 * low.shape[1]])


@triton.jit
def _numbers_of_place(words, first, second, PLACE: tl.constexpr, BITS: tl.constexpr, CODES: tl.constexpr):
    """Return the numbers of one place: [outputs, WORDS]."""
    if CODES == "affine":
        DOWN: tl.constexpr = 0 if BITS * (PLACE + 1) <= 23 else 16
        GROWN: tl.constexpr = 1 << (BITS * PLACE - DOWN)
        marked = (words >> DOWN) & 0x00FFFFFF | 0x4B000000
        code = marked & ((1 << BITS) - 1) * GROWN + 0x7F000000
        whole = code.to(tl.float32, bitcast=True) - 8388608.0
        number = whole * (first * (1.0 / GROWN))[:, None] + second[:, None]
    elif CODES == "e4m3":
        bits = _moved(words, 24 - BITS * PLACE) & 0x80000000 | _moved(words, 20 - BITS * PLACE) & 0x07F00000
        number = bits.to(tl.float32, bitcast=True) * (2.0 ** 120) * first[:, None]
    else:
        bits = _moved(words, 28 - BITS * PLACE) & 0x80000000 | _moved(words, 22 - BITS * PLACE) & 0x01C00000
        number = bits.to(tl.float32, bitcast=True) * (2.0 ** 126) * first[:, None]
    return number


@triton.jit
def _moved(words, UP: tl.constexpr):
    """Return bits moved up, or down."""
    return words << UP if UP >= 0 else words >> -UP


@triton.jit
def _scale(
    scales, block, PAIR: tl.constexpr, out, is_out,
    NUM_OUTPUTS: tl.constexpr, WORDS: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr, SCALES: tl.constexpr
):
    """Return what the scales of outputs say of a pair of places, two numbers each: [outputs], float32."""
    PER_WORD: tl.constexpr = 4 if SCALES == "e8m0" or SCALES == "e4m3" else 1
    if GROUP >= 32 // BITS * WORDS:
        group = block // (GROUP // (32 // BITS * WORDS))
    else:
        group = block * (32 // BITS * WORDS // GROUP) + PAIR * 2 * WORDS // GROUP
    told = tl.load(scales + (group // PER_WORD) * NUM_OUTPUTS + out, mask=is_out, other=0).to(tl.uint32, bitcast=True)
    second = (told & 0xFFFF0000).to(tl.float32, bitcast=True)
    if SCALES == "bf16":
        first = (told << 16).to(tl.float32, bitcast=True)
    elif SCALES == "f16":
        first = (told & 0xFFFF).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
        second = (told >> 16).to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    elif SCALES == "f32":
        first = told.to(tl.float32, bitcast=True)
    else:
        code = (told >> (group % PER_WORD * 8).to(tl.uint32)) & 0xFF
        if SCALES == "e8m0":
            first = (code << 23).to(tl.float32, bitcast=True)
        else:
            bits = (code & 0x80) << 24 | (code & 0x7F) << 20
            first = bits.to(tl.float32, bitcast=True) * (2.0 ** 120)
    return first, second
# fmt: on
