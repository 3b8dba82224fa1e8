"""What kernels of products generate: addresses of rows, vectors of numbers, sums of their products."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
"""Numbers that a register of this machine holds."""
VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_INTEGERS, _HALVES = ir.VectorType(_INT32, LANES), ir.VectorType(ir.IntType(16), LANES)


def row_starts(context: Any, builder: Any, kind: Any, array: Any, first: Any, count: int) -> tuple[list[Any], Any]:
    """Generate the addresses of rows [first, first + count) of a contiguous matrix, and how many columns it has."""
    matrix = context.make_array(kind)(context, builder, array)
    num_columns = cgutils.unpack_tuple(builder, matrix.shape)[1]
    rows = (builder.add(first, _INT64(row)) for row in range(count))
    return [builder.gep(matrix.data, [builder.mul(row, num_columns)]) for row in rows], num_columns


def vector_addresses(builder: Any, start: Any, count: int, vector: Any = VECTOR) -> list[Any]:
    """Generate the addresses of consecutive vectors."""
    places = (_INT64(place * LANES) for place in range(count))
    return [builder.bitcast(builder.gep(start, [place]), vector.as_pointer()) for place in places]


def load_vectors(builder: Any, start: Any, count: int) -> list[Any]:
    """Generate the loading of consecutive vectors."""
    return [builder.load(address, align=4) for address in vector_addresses(builder, start, count)]


def load_halves(builder: Any, start: Any, count: int) -> list[Any]:
    """Generate the loading of consecutive vectors of bfloat16 as float32, whose upper halves they are."""
    sixteen = ir.Constant(_INTEGERS, [16] * LANES)
    halves = [builder.load(address, align=2) for address in vector_addresses(builder, start, count, _HALVES)]
    return [builder.bitcast(builder.shl(builder.zext(half, _INTEGERS), sixteen), VECTOR) for half in halves]


def store_vectors(builder: Any, values: list[Any], start: Any) -> None:
    """Generate the storing of consecutive vectors."""
    for value, address in zip(values, vector_addresses(builder, start, len(values)), strict=True):
        builder.store(value, address, align=4)


def spread(builder: Any, value: Any, vector: Any = VECTOR) -> Any:
    """Generate a vector of one number."""
    undefined = ir.Constant(vector, ir.Undefined)
    places = ir.Constant(ir.VectorType(_INT32, vector.count), None)
    return builder.shuffle_vector(builder.insert_element(undefined, value, _INT32(0)), undefined, places)


def add_product(builder: Any, factor: Any, value: Any, total: Any) -> Any:
    """Generate `total` plus the product of two vectors, rounded once."""
    vector = total.type
    kind = ir.FunctionType(vector, [vector] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{vector.count}f32")
    return builder.call(function, [factor, value, total])
