"""Operations that numba has no word for, written in the compiler's own language: prefetches, sums kept in registers."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from baton.engine.runners.torch.ops.cpu.numba_kernels import PANEL_OUTPUTS
from baton.engine.runners.torch.ops.cpu.numba_kernels.registers import add_product, spread

_LANES = 16
_NUM_VECTORS = PANEL_OUTPUTS // _LANES
_FLOAT, _INT32, _INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_LINE_BYTES = 64
_AHEAD_LINES = 64
"""How far before its use a product asks for a weight: with it memory in pages of 2 MiB is read at 40 instead of
38 GB/s in float32, at 39 instead of 37 in bfloat16."""
_FLOATS, _INTS = ir.VectorType(_FLOAT, _LANES), ir.VectorType(_INT32, _LANES)


@intrinsic
def prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of an element of a contiguous array, counted over all dimensions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        _ask_for(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, index), generate


def _ask_for(builder: Any, address: Any) -> None:
    """Generate a prefetch."""
    line = builder.bitcast(address, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [line.type, _INT32, _INT32, _INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [line, _INT32(0), _INT32(3), _INT32(1)])


@njit(nogil=True)
def prefetch_start(array: Any) -> None:
    """Ask for the beginning of a contiguous array, as much as a product asks for ahead of its use."""
    line_elements = _LINE_BYTES // array.itemsize
    for index in range(0, min(array.size, _AHEAD_LINES * line_elements), line_elements):
        prefetch(array, index)


@cache
def panel_product(num_rows: int) -> Any:
    """Return the intrinsic that multiplies some rows by one panel of weights, its sums in registers throughout.

    `multiply(panel, inputs, first_row, sums)`: `panel` is [num_inputs, 64] float32, or [num_inputs / 2, 64] uint32 with
    the bfloat16 of an even input in the low half and of the next one in the high half; `inputs` [rows, num_inputs] and
    `sums` [rows, 64] are float32. Rows [first_row, first_row + num_rows) of `sums` are written. All are contiguous.
    """

    @intrinsic
    def multiply(_context: Any, panel: Any, inputs: Any, _first_row: Any, sums: Any) -> Any:
        is_pair = panel.dtype == types.uint32

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            weights, rows, results = (
                context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (0, 1, 3)
            )
            num_steps = cgutils.unpack_tuple(builder, weights.shape)[0]
            num_inputs = cgutils.unpack_tuple(builder, rows.shape)[1]
            accumulators = [
                [cgutils.alloca_once_value(builder, ir.Constant(_FLOATS, None)) for _ in range(_NUM_VECTORS)]
                for _ in range(num_rows)
            ]
            starts = [
                builder.gep(rows.data, [builder.mul(builder.add(arguments[2], _INT64(row)), num_inputs)])
                for row in range(num_rows)
            ]
            kind = (_INTS if is_pair else _FLOATS).as_pointer()
            with cgutils.for_range(builder, num_steps) as loop:
                line = builder.bitcast(
                    builder.gep(weights.data, [builder.mul(loop.index, _INT64(PANEL_OUTPUTS))]), kind
                )
                for vector in range(_NUM_VECTORS):
                    _ask_for(builder, builder.gep(line, [_INT64(vector + _AHEAD_LINES)]))
                for half in range(2 if is_pair else 1):
                    place = builder.add(builder.mul(loop.index, _INT64(2)), _INT64(half)) if is_pair else loop.index
                    factors = [spread(builder, builder.load(builder.gep(start, [place])), _FLOATS) for start in starts]
                    for vector in range(_NUM_VECTORS):
                        loaded = builder.load(builder.gep(line, [_INT64(vector)]), align=4)
                        values = _half(builder, loaded, half) if is_pair else loaded
                        for factor, sums_of_row in zip(factors, accumulators, strict=True):
                            total = sums_of_row[vector]
                            builder.store(add_product(builder, factor, values, builder.load(total)), total)
            for row, sums_of_row in enumerate(accumulators):
                start = builder.mul(builder.add(arguments[2], _INT64(row)), _INT64(PANEL_OUTPUTS))
                target = builder.bitcast(builder.gep(results.data, [start]), _FLOATS.as_pointer())
                for vector, accumulator in enumerate(sums_of_row):
                    builder.store(builder.load(accumulator), builder.gep(target, [_INT64(vector)]), align=4)
            return context.get_dummy_value()

        return types.void(panel, inputs, types.intp, sums), generate

    return multiply


def _half(builder: Any, pairs: Any, half: int) -> Any:
    """Return one bfloat16 of each pair as a float32."""
    shift, mask = ir.Constant(_INTS, [16] * _LANES), ir.Constant(_INTS, [0xFFFF0000] * _LANES)
    bits = builder.and_(pairs, mask) if half else builder.shl(pairs, shift)
    return builder.bitcast(bits, _FLOATS)
