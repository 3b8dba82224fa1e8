"""Arrays and kernels by their addresses, so that one call can go through all layers of a model."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array


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
    """Call what `attention.attention_address` returned.

    Args:
        address: Of the compiled function.
        tensors: Query, keys, values, output.
        indices: Rows, tables, spans, sizes.
        scaling: Factor of the scores, float32.
    """

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
