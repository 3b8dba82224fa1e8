"""Operations that numba has no word for, in the compiler's own language: vectors, prefetches, arrays by address."""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8
"""Numbers that a register of this machine holds."""
VECTOR = ir.VectorType(ir.FloatType(), LANES)
_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
LINE_BYTES = 64
"""Bytes that memory gives at once."""
AHEAD_LINES = 64
"""How far before its use a product asks for a weight: with it memory in pages of 2 MiB is read at 40 instead of
38 GB/s in float32, at 39 instead of 37 in bfloat16."""
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


@intrinsic
def prefetch(_context: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of an element of a contiguous array, counted over all dimensions."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        ask_for(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, index), generate


def ask_for(builder: Any, address: Any) -> None:
    """Generate a prefetch."""
    line = builder.bitcast(address, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [line.type, _INT32, _INT32, _INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [line, _INT32(0), _INT32(3), _INT32(1)])


@njit(nogil=True)
def prefetch_from(array: Any, first: Any) -> None:
    """Ask for a contiguous array from an element on, as much as a product asks for ahead of its use."""
    line_elements = LINE_BYTES // array.itemsize
    for index in range(first, min(array.size, first + AHEAD_LINES * line_elements), line_elements):
        prefetch(array, index)


@intrinsic
def at_address(_context: Any, like: Any, address: Any) -> Any:
    """Return the array of an address, of the kind, the sizes and the strides of another; nothing keeps it alive."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        known = context.make_array(signature.args[0])(context, builder, arguments[0])
        array = context.make_array(signature.return_type)(context, builder)
        populate_array(
            array,
            data=builder.inttoptr(arguments[1], known.data.type),
            shape=known.shape,
            strides=known.strides,
            itemsize=known.itemsize,
            meminfo=None,
        )
        return array._getvalue()

    return like(like, address), generate


@intrinsic
def call_attention(_context: Any, address: Any, tensors: Any, indices: Any, scaling: Any) -> Any:
    """Call an `attention_address` with query, keys, values, output, and rows, tables, spans, sizes (`indices`)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointers = []
        for kinds, group in zip(signature.args[1:3], arguments[1:3], strict=True):
            for place, kind in enumerate(kinds):
                value = builder.extract_value(group, place)
                pointers.append(context.make_array(kind)(context, builder, value).data)
        passed = [*pointers, arguments[3]]
        kind = ir.FunctionType(ir.VoidType(), [value.type for value in passed])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), passed)
        return context.get_dummy_value()

    return types.void(address, tensors, indices, scaling), generate
