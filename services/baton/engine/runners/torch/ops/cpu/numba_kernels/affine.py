"""Products by weights that stay packed in 4 or 8 bits, with a scale and a bias for each group of inputs; unpacking.

Sixteen outputs lie side by side, so that a lane of a register is an output: [num_blocks, num_groups, 1 + group_size *
bits / 32, 16] words of 32 bits. The first sixteen words of a group are the outputs' scales in the low halves and their
biases in the high ones, bfloat16 in an array of uint32, float16 in one of int32; the others are their codes, the lowest
bits first. Codes of 8 bits have an axis of one behind: what is compiled must see a difference. A group's sum of code *
input is multiplied by the scale, the bias by the sum of the group's inputs: no weight is formed, each is read once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from baton.engine.runners.torch.ops.cpu.numba_kernels import AFFINE_OUTPUTS
from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel
from baton.engine.runners.torch.ops.cpu.numba_kernels.numbers import narrow, widen
from baton.engine.runners.torch.ops.cpu.numba_kernels.team import run_by_team, share
from baton.engine.runners.torch.ops.cpu.numba_kernels.vectors import AHEAD_LINES, add_product, ask_for, spread

_FLOAT, _INT16, _INT32, _INT64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FLOATS, _INTS = ir.VectorType(_FLOAT, AFFINE_OUTPUTS), ir.VectorType(_INT32, AFFINE_OUTPUTS)
_HALVES = ir.VectorType(ir.HalfType(), AFFINE_OUTPUTS)
_CHAINS = 4
"""Sums of a group that are kept apart: an addition waits for the one before it."""


@cache
def group_product(num_rows: int) -> Any:
    """Return the intrinsic that multiplies some rows by one block of outputs.

    `multiply(weight, block, inputs, totals, first_row, sums)`: `weight` is packed, `inputs` [rows, num_inputs],
    `totals` [rows, num_groups] the sums of the inputs of each group, `sums` [rows, 16], all float32. Rows [first_row,
    first_row + num_rows) of `sums` are written.
    """

    @intrinsic
    def multiply(_context: Any, weight: Any, _block: Any, inputs: Any, totals: Any, _first_row: Any, sums: Any) -> Any:
        is_half, bits = weight.dtype == types.int32, _bits_of(weight)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            groups = _Groups(context, builder, signature.args[0], arguments[0], arguments[1])
            rows, totals_of, results = (
                context.make_array(signature.args[place])(context, builder, arguments[place]) for place in (2, 3, 5)
            )
            indices = [builder.add(arguments[4], _INT64(row)) for row in range(num_rows)]
            num_inputs = cgutils.unpack_tuple(builder, rows.shape)[1]
            starts = [builder.gep(rows.data, [builder.mul(row, num_inputs)]) for row in indices]
            bias_starts = [builder.gep(totals_of.data, [builder.mul(row, groups.count)]) for row in indices]
            zero = ir.Constant(_FLOATS, None)
            results_of = [cgutils.alloca_once_value(builder, zero) for _ in indices]
            chains = [[cgutils.alloca_once_value(builder, zero) for _ in range(_CHAINS)] for _ in indices]
            with cgutils.for_range(builder, groups.count) as loop:
                first = groups.start(loop.index)
                scale, bias = groups.scale_and_bias(first, is_half=is_half)
                input_start = builder.mul(loop.index, groups.size(bits))
                for own in chains:
                    for chain in own:
                        builder.store(zero, chain)
                with cgutils.for_range(builder, groups.num_vectors) as inner:
                    for place, code in enumerate(groups.codes(first, inner.index, bits)):
                        offset = builder.add(builder.mul(inner.index, _INT64(32 // bits)), _INT64(place))
                        for start, own in zip(starts, chains, strict=True):
                            value = builder.load(builder.gep(start, [builder.add(input_start, offset)]))
                            chain = own[place % _CHAINS]
                            total = add_product(builder, spread(builder, value, _FLOATS), code, builder.load(chain))
                            builder.store(total, chain)
                for own, bias_start, result in zip(chains, bias_starts, results_of, strict=True):
                    whole = _sum(builder, [builder.load(chain) for chain in own])
                    total = add_product(builder, scale, whole, builder.load(result))
                    factor = spread(builder, builder.load(builder.gep(bias_start, [loop.index])), _FLOATS)
                    builder.store(add_product(builder, factor, bias, total), result)
            for row, result in zip(indices, results_of, strict=True):
                target = builder.gep(results.data, [builder.mul(row, _INT64(AFFINE_OUTPUTS))])
                builder.store(builder.load(result), builder.bitcast(target, _FLOATS.as_pointer()), align=4)
            return context.get_dummy_value()

        index = types.intp
        return types.void(weight, index, inputs, totals, index, sums), generate

    return multiply


@intrinsic
def _unpack(_context: Any, weight: Any, block: Any, target: Any, first: Any) -> Any:
    """Unpack one block of outputs into sixteen outputs of panels, as `unpack_affine` takes them, from `first` on."""
    is_half, bits, is_pair = weight.dtype == types.int32, _bits_of(weight), target.dtype == types.uint32

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        groups = _Groups(context, builder, signature.args[0], arguments[0], arguments[1])
        panels = context.make_array(signature.args[2])(context, builder, arguments[2])
        _, num_steps, width = cgutils.unpack_tuple(builder, panels.shape)
        panel, place = (operation(arguments[3], width) for operation in (builder.udiv, builder.urem))
        origin = builder.add(builder.mul(panel, builder.mul(num_steps, width)), place)
        begin = builder.gep(panels.data, [origin])
        kind = _INTS if is_pair else _FLOATS
        with cgutils.for_range(builder, groups.count) as loop:
            first = groups.start(loop.index)
            scale, bias = groups.scale_and_bias(first, is_half=is_half)
            input_start = builder.mul(loop.index, groups.size(bits))
            with cgutils.for_range(builder, groups.num_vectors) as inner:
                values = [add_product(builder, code, scale, bias) for code in groups.codes(first, inner.index, bits)]
                step = builder.add(input_start, builder.mul(inner.index, _INT64(32 // bits)))
                if is_pair:
                    values = [_pair(builder, *both) for both in zip(values[::2], values[1::2], strict=True)]
                    step = builder.udiv(step, _INT64(2))
                for number, value in enumerate(values):
                    row = builder.mul(builder.add(step, _INT64(number)), width)
                    address = builder.bitcast(builder.gep(begin, [row]), kind.as_pointer())
                    builder.store(value, address, align=4)
        return context.get_dummy_value()

    return types.void(weight, block, target, first), generate


class _Groups:
    """The groups of one block, while code is generated that reads them."""

    def __init__(self, context: Any, builder: Any, kind: Any, weight: Any, block: Any) -> None:
        array = context.make_array(kind)(context, builder, weight)
        _, self.count, num_all, *_ = cgutils.unpack_tuple(builder, array.shape)
        self._builder, self._num_all = builder, num_all
        self.num_vectors = builder.sub(num_all, _INT64(1))
        vectors = builder.bitcast(array.data, _INTS.as_pointer())
        self._begin = builder.gep(vectors, [builder.mul(block, builder.mul(self.count, num_all))])

    def start(self, group: Any) -> Any:
        """Return the address of a group's first vector."""
        return self._builder.gep(self._begin, [self._builder.mul(group, self._num_all)])

    def size(self, bits: int) -> Any:
        """Return the inputs of a group."""
        return self._builder.mul(self.num_vectors, _INT64(32 // bits))

    def scale_and_bias(self, first: Any, *, is_half: bool) -> tuple[Any, Any]:
        """Load what a group's codes are multiplied by, and what is added."""
        builder = self._builder
        both = builder.load(first, align=4)
        high = builder.lshr(both, _all(16))
        if is_half:
            halves = ir.VectorType(_INT16, AFFINE_OUTPUTS)
            low, high = (
                builder.fpext(builder.bitcast(builder.trunc(each, halves), _HALVES), _FLOATS) for each in (both, high)
            )
            return low, high
        low = builder.shl(both, _all(16))
        return builder.bitcast(low, _FLOATS), builder.bitcast(builder.shl(high, _all(16)), _FLOATS)

    def codes(self, first: Any, vector: Any, bits: int) -> list[Any]:
        """Load the codes of one word of each output, as numbers: 32 / bits vectors."""
        builder = self._builder
        address = builder.gep(first, [builder.add(vector, _INT64(1))])
        ask_for(builder, builder.gep(address, [_INT64(AHEAD_LINES)]))
        words = builder.load(address, align=4)
        shifted = [words if not place else builder.lshr(words, _all(place * bits)) for place in range(32 // bits)]
        return [builder.sitofp(builder.and_(each, _all((1 << bits) - 1)), _FLOATS) for each in shifted]


def _bits_of(weight: Any) -> int:
    return 4 if weight.ndim == 4 else 8


def _all(number: int) -> Any:
    return ir.Constant(_INTS, [number] * AFFINE_OUTPUTS)


def _sum(builder: Any, values: list[Any]) -> Any:
    while len(values) > 1:
        values = [builder.fadd(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _pair(builder: Any, even: Any, odd: Any) -> Any:
    """Return two vectors of float32 as one of pairs of bfloat16, rounded to even."""
    low, high = (_rounded(builder, each) for each in (even, odd))
    return builder.or_(builder.lshr(low, _all(16)), builder.and_(high, _all(0xFFFF0000)))


def _rounded(builder: Any, value: Any) -> Any:
    bits = builder.bitcast(value, _INTS)
    is_odd = builder.and_(builder.lshr(bits, _all(16)), _all(1))
    return builder.add(bits, builder.add(is_odd, _all(0x7FFF)))


_multiply_one, _multiply_four = group_product(1), group_product(4)


@kernel
def multiply_affine(rows: Any, weight: Any, bias: Any, output: Any, span: Any) -> None:
    """Write rows times the transposed packed weight, plus the bias; sums are float32.

    `rows`: [num_rows, num_inputs]. `weight`: packed; its outputs are padded to whole blocks. `bias`: [num_outputs], of
    the kind of the rows; or empty. `output`: [num_rows, num_outputs], of which the outputs of blocks [first, end),
    `span`, are written.
    """
    num_rows, num_inputs = rows.shape
    num_groups = weight.shape[1]
    group_size = num_inputs // num_groups
    num_padded = -(-num_rows // 4) * 4 if num_rows > 1 else 1
    inputs = np.zeros((num_padded, num_inputs), np.float32)
    totals = np.zeros((num_padded, num_groups), np.float32)
    for row in range(num_rows):
        for group in range(num_groups):
            total = np.float32(0)
            for element in range(group * group_size, (group + 1) * group_size):
                value = widen(rows[row, element])
                inputs[row, element] = value
                total += value
            totals[row, group] = total
    sums = np.empty((num_padded, AFFINE_OUTPUTS), np.float32)
    for block in range(span[0], span[1]):
        if num_rows == 1:
            _multiply_one(weight, block, inputs, totals, 0, sums)
        else:
            for first_row in range(0, num_rows, 4):
                _multiply_four(weight, block, inputs, totals, first_row, sums)
        start = block * AFFINE_OUTPUTS
        for row in range(num_rows):
            for place in range(min(AFFINE_OUTPUTS, output.shape[1] - start)):
                total = sums[row, place]
                if len(bias):
                    total += widen(bias[start + place])
                output[row, start + place] = narrow(total, output)


@kernel
def unpack_affine(team: Any, weight: Any, panels: Any) -> None:
    """Write all of a packed weight as oneDNN's panels, as `decode_step.multiply` has them."""
    run_by_team(team, _unpack_share, (weight, panels))


@kernel
def _unpack_share(member: Any, weight: Any, panels: Any) -> None:
    first, end = share(weight.shape[0], 1, member)
    for block in range(first, end):
        _unpack(weight, block, panels, block * AFFINE_OUTPUTS)
