"""A product of matrices that lie in a core's caches, a tile at a time whose sums stay in registers."""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from baton.engine.runners.torch.ops.cpu.numba_kernels.registers import (
    LANES,
    VECTOR,
    add_product,
    load_vectors,
    row_starts,
    spread,
    store_vectors,
)

TILE_ROWS = 6
"""Rows of a tile: with two vectors each, twelve sums, which with what they need fill the sixteen registers of AVX2."""
_NUM_VECTORS = 2
TILE_COLUMNS = _NUM_VECTORS * LANES
"""Columns of a tile."""


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
                    builder, builder.gep(begin, [builder.mul(loop.index, right_columns)]), _NUM_VECTORS
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
    values = load_vectors(builder, target, _NUM_VECTORS) if is_adding else [ir.Constant(VECTOR, None)] * _NUM_VECTORS
    return [cgutils.alloca_once_value(builder, value) for value in values]
