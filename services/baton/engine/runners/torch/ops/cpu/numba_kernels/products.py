"""Products whose sums stay in registers, in the compiler's own language: by panels, by strips, and tile by tile.

A panel is 64 outputs side by side, or 32, as oneDNN lays weights out; of narrow ones two are read at once. Of a strip,
eight rows of a transposed weight are read side by side, which lets the core fetch eight streams at once: on an EPYC
with AVX2 one row of SmolLM-135M's layers is multiplied in 21.5 ms where panels take 27.7 and memory's own rate is 22.9,
eight rows in 57 instead of 72, all in pages of 2 MiB. Tiles are of matrices that lie in a core's caches.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from baton.engine.runners.torch.ops.cpu.numba_kernels import PANEL_OUTPUTS, STRIP_INPUTS
from baton.engine.runners.torch.ops.cpu.numba_kernels.vectors import (
    AHEAD_LINES,
    LANES,
    VECTOR,
    add_product,
    ask_for,
    load_halves,
    load_vectors,
    row_starts,
    spread,
    store_vectors,
)

_FLOAT, _INT32, _INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_PANEL_LANES = 16
_PANEL_VECTORS, _HALF = PANEL_OUTPUTS // _PANEL_LANES, PANEL_OUTPUTS // 2
_FLOATS, _INTS = ir.VectorType(_FLOAT, _PANEL_LANES), ir.VectorType(_INT32, _PANEL_LANES)
_STRIP_VECTORS = 2
"""Sums of a row: with four rows as many as hide the latency of an addition."""
TILE_ROWS = 6
"""Rows of a tile: with two vectors each, twelve sums, which with what they need fill the sixteen registers of AVX2."""
_TILE_VECTORS = 2
TILE_COLUMNS = _TILE_VECTORS * LANES
"""Columns of a tile."""


@cache
def panel_product(num_rows: int) -> Any:
    """Return the intrinsic that multiplies some rows by the weights of 64 outputs, sums in registers throughout.

    `multiply(panel, width, inputs, first_row, sums)`: `panel` is [num_inputs, 64] float32, or [num_inputs / 2, 64]
    uint32 with the bfloat16 of an even input in the low half and of the next one in the high half; of `width` 32 it is
    the memory of two panels of so many outputs, one after the other. `inputs` [rows, num_inputs] and `sums` [rows, 64]
    are float32. Rows [first_row, first_row + num_rows) of `sums` are written. All are contiguous.
    """

    @intrinsic
    def multiply(_context: Any, panel: Any, width: Any, inputs: Any, _first_row: Any, sums: Any) -> Any:
        is_pair = panel.dtype == types.uint32

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights, rows, results = (
                context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 2, 4)
            )
            num_steps = cgutils.unpack_tuple(builder, weights.shape)[0]
            num_inputs = cgutils.unpack_tuple(builder, rows.shape)[1]
            accumulators = [
                [cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, None)) for _ in range(_PANEL_VECTORS)]
                for _ in range(num_rows)
            ]
            starts = [
                builder.gep(rows.data, [builder.mul(builder.add(arguments[3], _INT64(row)), num_inputs)])
                for row in range(num_rows)
            ]
            kind = (_INTS if is_pair else _FLOATS).as_pointer()
            is_whole = builder.icmp_signed("==", arguments[1], _INT64(PANEL_OUTPUTS))
            behind = builder.select(is_whole, _INT64(_HALF), builder.mul(num_steps, _INT64(_HALF)))
            with cgutils.for_range(builder, num_steps) as loop:
                start = builder.mul(loop.index, arguments[1])
                halves = [builder.gep(weights.data, [place]) for place in (start, builder.add(start, behind))]
                lines = [
                    builder.gep(builder.bitcast(each, kind), [_INT64(line)])
                    for each in halves
                    for line in range(_PANEL_VECTORS // 2)
                ]
                for line in lines:
                    ask_for(builder, builder.gep(line, [_INT64(AHEAD_LINES)]))
                for half in range(2 if is_pair else 1):
                    place = builder.add(builder.mul(loop.index, _INT64(2)), _INT64(half)) if is_pair else loop.index
                    factors = [spread(builder, builder.load(builder.gep(start, [place])), _FLOATS) for start in starts]
                    for vector, line in enumerate(lines):
                        loaded = builder.load(line, align=4)
                        values = _half(builder, loaded, half) if is_pair else loaded
                        for factor, sums_of_row in zip(factors, accumulators, strict=True):
                            total = sums_of_row[vector]
                            builder.store(add_product(builder, factor, values, builder.load(total)), total)
            for row, sums_of_row in enumerate(accumulators):
                start = builder.mul(builder.add(arguments[3], _INT64(row)), _INT64(PANEL_OUTPUTS))
                target = builder.bitcast(builder.gep(results.data, [start]), _FLOATS.as_pointer())
                for vector, accumulator in enumerate(sums_of_row):
                    builder.store(builder.load(accumulator), builder.gep(target, [_INT64(vector)]), align=4)
            return context.get_dummy_value()

        return types.void(panel, width, inputs, types.intp, sums), generate

    return multiply


def _half(builder: Any, pairs: Any, half: int) -> Any:
    """Return one bfloat16 of each pair as a float32."""
    shift, mask = ir.Constant(_INTS, [16] * _PANEL_LANES), ir.Constant(_INTS, [0xFFFF0000] * _PANEL_LANES)
    bits = builder.and_(pairs, mask) if half else builder.shl(pairs, shift)
    return builder.bitcast(bits, _FLOATS)


@cache
def strip_product(num_rows: int) -> Any:
    """Return the intrinsic that adds the products of some rows and one strip of a weight to sums.

    `add(weight, first_input, inputs, first_row, sums, first_output, end_output)`: `weight` is [num_inputs,
    num_outputs], float32 or uint16, the bits of bfloat16; `inputs` [rows, num_inputs] and `sums` [rows, num_outputs]
    are float32; all are contiguous. Outputs [first_output, end_output), multiples of 32, of rows [first_row, first_row
    + num_rows) get the products of inputs [first_input, first_input + 8).
    """

    @intrinsic
    def add(
        _context: Any,
        weight: Any,
        _first_input: Any,
        inputs: Any,
        _first_row: Any,
        sums: Any,
        _first_output: Any,
        _end_output: Any,
    ) -> Any:
        load = load_halves if weight.dtype == types.uint16 else load_vectors

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, first_input, _, first_row, _, first_output, end_output = arguments
            weights, rows, results = (
                row_starts(context, builder, signature.args[place], arguments[place], first, count)[0]
                for place, first, count in (
                    (0, first_input, STRIP_INPUTS),
                    (2, first_row, num_rows),
                    (4, first_row, num_rows),
                )
            )
            inputs_of_strip = [builder.add(first_input, _INT64(place)) for place in range(STRIP_INPUTS)]
            factors = [
                [spread(builder, builder.load(builder.gep(row, [place]))) for place in inputs_of_strip] for row in rows
            ]
            step = _INT64(LANES * _STRIP_VECTORS)
            with cgutils.for_range_slice(builder, first_output, end_output, step, intp=_INT64) as (output, _):
                starts_here = ([builder.gep(start, [output]) for start in starts] for starts in (weights, results))
                _add_products(builder, load, factors, *starts_here)
            return context.get_dummy_value()

        index = types.intp
        return types.void(weight, index, inputs, index, sums, index, index), generate

    return add


def _add_products(builder: Any, load: Any, factors: Any, weights: Any, results: Any) -> None:
    """Generate what is done to `_STRIP_VECTORS` vectors of outputs of all rows: their sums stay in registers."""
    totals = [load_vectors(builder, start, _STRIP_VECTORS) for start in results]
    for place, start in enumerate(weights):
        values = load(builder, start, _STRIP_VECTORS)
        totals = [
            [add_product(builder, own[place], value, total) for value, total in zip(values, row_totals, strict=True)]
            for own, row_totals in zip(factors, totals, strict=True)
        ]
    for start, row_totals in zip(results, totals, strict=True):
        store_vectors(builder, row_totals, start)


@cache
def tile_product(*, is_adding: bool) -> Any:
    """Return the intrinsic that computes one tile of a product of matrices.

    `multiply(left, row, right, first, column, depth, sums, sums_column)`: all are contiguous float32 matrices. The tile
    of `sums` at (row, sums_column), 6 rows of `TILE_COLUMNS`, becomes rows [row, row + 6) and columns [0, depth) of
    `left` times rows [first, first + depth) and columns [column, column + TILE_COLUMNS) of `right`; if it is adding, it
    is increased by that.
    """

    @intrinsic
    def multiply(
        _context: Any,
        left: Any,
        _row: Any,
        right: Any,
        _first: Any,
        _column: Any,
        _depth: Any,
        sums: Any,
        _sums_column: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, row, _, first, column, depth, _, sums_column = arguments
            (left_rows, _), (right_rows, right_columns), (sums_rows, _) = (
                row_starts(context, builder, signature.args[place], arguments[place], start, count)
                for place, start, count in ((0, row, TILE_ROWS), (2, first, 1), (6, row, TILE_ROWS))
            )
            targets = [builder.gep(start, [sums_column]) for start in sums_rows]
            totals = [_beginnings(builder, target, is_adding=is_adding) for target in targets]
            begin = builder.gep(right_rows[0], [column])
            with cgutils.for_range(builder, depth) as loop:
                values = load_vectors(
                    builder, builder.gep(begin, [builder.mul(loop.index, right_columns)]), _TILE_VECTORS
                )
                for start, row_totals in zip(left_rows, totals, strict=True):
                    factor = spread(builder, builder.load(builder.gep(start, [loop.index])))
                    for value, total in zip(values, row_totals, strict=True):
                        builder.store(add_product(builder, factor, value, builder.load(total)), total)
            for target, row_totals in zip(targets, totals, strict=True):
                store_vectors(builder, [builder.load(total) for total in row_totals], target)
            return context.get_dummy_value()

        index = types.intp
        return types.void(left, index, right, index, index, index, sums, index), generate

    return multiply


def _beginnings(builder: Any, target: Any, *, is_adding: bool) -> list[Any]:
    """Generate where the sums of a row are kept, which the compiler turns into registers."""
    values = load_vectors(builder, target, _TILE_VECTORS) if is_adding else [ir.Constant(VECTOR, None)] * _TILE_VECTORS
    return [cgutils.alloca_once_value(builder, value) for value in values]
