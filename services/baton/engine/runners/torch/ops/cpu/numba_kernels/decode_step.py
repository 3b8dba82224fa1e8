"""All layers of a decode step of few rows, in one call; and its parts: products, and what lies between them.

Products read weights in oneDNN's own layout or transposed, at the rate of memory: on a core that reads 40 GB/s oneDNN's
product of one row takes 1.2 times as long in float32 as reading the weights, and 1.3 times in bfloat16. What lies
between takes one pass over few rows each: no intermediate array, no dispatch. Each product of a layer ends by asking
memory for the beginning of the next one's weights: what goes between them takes a microsecond, in which memory would
rest. What Python does between calls takes longer than it looks, hence one call for all layers, which are alike but for
the addresses of their weights and of their K and V.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baton.engine.runners.torch.ops.cpu.numba_kernels import PANEL_OUTPUTS, STRIP_INPUTS, STRIP_OUTPUTS
from baton.engine.runners.torch.ops.cpu.numba_kernels.affine import multiply_affine
from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attend
from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel
from baton.engine.runners.torch.ops.cpu.numba_kernels.numbers import exponential, narrow, widen
from baton.engine.runners.torch.ops.cpu.numba_kernels.products import panel_product, strip_product
from baton.engine.runners.torch.ops.cpu.numba_kernels.vectors import at_address, prefetch_start

MAX_PANEL_ROWS = 8
"""Rows up to which panels beat oneDNN."""
_SUMS_ELEMENTS = 32 * 1024
"""Sums of a block of outputs by strips: 128 KiB, which stay in a core's cache while the block's weights pass by."""
_one_row, _two_rows, _four_rows = panel_product(1), panel_product(2), panel_product(4)
_one_row_of_strip, _two_rows_of_strip, _four_rows_of_strip = strip_product(1), strip_product(2), strip_product(4)


@kernel
def multiply(rows: Any, weight: Any, bias: Any, output: Any) -> None:
    """Write rows times the transposed weight, plus the bias; sums are float32.

    `rows`: [num_rows, num_inputs]. `weight`: in panels of 64 outputs, [num_panels, num_inputs, 64] float32, or
    [num_panels, num_inputs / 2, 64] uint32 of pairs of bfloat16, or in two or more of 32; or transposed,
    [num_inputs, num_outputs] float32, or uint16 of bfloat16. Outputs and inputs are padded by zeros. Or in few bits, as
    `affine` has them. `bias`: [num_outputs], of the kind of the rows; or empty. `output`: [num_rows, num_outputs].
    """
    if weight.ndim > 3:
        multiply_affine(rows, weight, bias, output)
    else:
        _multiply_whole(rows, weight, bias, output)


@kernel
def _multiply_whole(rows: Any, weight: Any, bias: Any, output: Any) -> None:
    num_rows, num_inputs = rows.shape
    num_padded = weight.shape[1] * 4 // rows.itemsize if weight.ndim == 3 else weight.shape[0]
    inputs = np.zeros((-(-num_rows // 4) * 4 if num_rows > 2 else num_rows, num_padded), np.float32)
    for row in range(num_rows):
        for element in range(num_inputs):
            inputs[row, element] = widen(rows[row, element])
    if weight.ndim == 3:
        _multiply_panels(inputs, weight, bias, output)
    else:
        _multiply_strips(inputs, weight, bias, output)


@kernel
def _multiply_panels(inputs: Any, panels: Any, bias: Any, output: Any) -> None:
    num_rows, (num_panels, num_steps, width) = len(output), panels.shape
    sums = np.empty((inputs.shape[0], PANEL_OUTPUTS), np.float32)
    weights, num_together = panels.reshape(panels.size), PANEL_OUTPUTS // width
    for each in range(0, num_panels, num_together):
        start = min(each, num_panels - num_together) * width  # of an odd number the last is read beside one once more
        panel = weights[start * num_steps : (start + PANEL_OUTPUTS) * num_steps].reshape((num_steps, PANEL_OUTPUTS))
        if num_rows == 1:
            _one_row(panel, width, inputs, 0, sums)
        elif num_rows == 2:
            _two_rows(panel, width, inputs, 0, sums)
        else:
            for first_row in range(0, num_rows, 4):
                _four_rows(panel, width, inputs, first_row, sums)
        _write(sums, start, bias, output)


@kernel
def _multiply_strips(inputs: Any, weight: Any, bias: Any, output: Any) -> None:
    num_rows = len(output)
    sums = np.zeros((inputs.shape[0], weight.shape[1]), np.float32)
    num_block_outputs = max(_SUMS_ELEMENTS // inputs.shape[0] // STRIP_OUTPUTS, 1) * STRIP_OUTPUTS
    for start in range(0, weight.shape[1], num_block_outputs):
        end = min(start + num_block_outputs, weight.shape[1])
        for first_input in range(0, weight.shape[0], STRIP_INPUTS):
            if num_rows == 1:
                _one_row_of_strip(weight, first_input, inputs, 0, sums, start, end)
            elif num_rows == 2:
                _two_rows_of_strip(weight, first_input, inputs, 0, sums, start, end)
            else:
                for first_row in range(0, num_rows, 4):
                    _four_rows_of_strip(weight, first_input, inputs, first_row, sums, start, end)
    _write(sums, 0, bias, output)


@kernel
def _write(sums: Any, start: Any, bias: Any, output: Any) -> None:
    """Write sums, plus the bias, to the outputs from `start` on, as far as there are such."""
    for row in range(output.shape[0]):
        for place in range(min(sums.shape[1], output.shape[1] - start)):
            total = sums[row, place]
            if len(bias):
                total += widen(bias[start + place])
            output[row, start + place] = narrow(total, output)


@kernel
def normalise(rows: Any, weight: Any, epsilon: Any, output: Any) -> None:
    """Write rows [num_rows, size] divided by their root mean square, times the weight [size]."""
    for row in range(rows.shape[0]):
        squares = np.float32(0)
        for element in range(rows.shape[1]):
            value = widen(rows[row, element])
            squares += value * value
        factor = np.float32(1) / np.sqrt(squares / np.float32(rows.shape[1]) + np.float32(epsilon))
        for element in range(rows.shape[1]):
            output[row, element] = narrow(widen(rows[row, element]) * factor * widen(weight[element]), output)


@kernel
def gate(gate_up: Any, output: Any) -> None:
    """Write up times SiLU of gate: [num_rows, size] of [num_rows, 2 * size], the gates first."""
    size = output.shape[1]
    for row in range(output.shape[0]):
        for element in range(size):
            value = widen(gate_up[row, element])
            activated = value / (np.float32(1) + exponential(-value))
            output[row, element] = narrow(activated * widen(gate_up[row, size + element]), output)


@kernel
def rotate_and_store(
    heads: Any, cosines: Any, signed_sines: Any, slots: Any, keys: Any, values: Any, queries: Any
) -> None:
    """Write queries, rotated, and K, rotated, and V into their slots among the positions of all blocks of a layer.

    `heads` are queries, keys and values side by side, [num_rows, num_heads + 2 * num_kv_heads, head_dim]; cosines and
    sines, the first half negated, [num_rows, 1, head_dim].
    """
    num_heads, num_kv_heads = queries.shape[1], keys.shape[0]
    block_tokens, head_dim = keys.shape[2], keys.shape[3]
    half = head_dim // 2
    rotated = np.empty(head_dim, np.float32)
    for row in range(heads.shape[0]):
        block, offset = divmod(slots[row], block_tokens)
        for head in range(num_heads + num_kv_heads):
            for element in range(half):
                first, second = widen(heads[row, head, element]), widen(heads[row, head, half + element])
                rotated[element] = first * widen(cosines[row, 0, element]) + second * widen(
                    signed_sines[row, 0, element]
                )
                rotated[half + element] = second * widen(cosines[row, 0, half + element]) + first * widen(
                    signed_sines[row, 0, half + element]
                )
            if head < num_heads:
                for element in range(head_dim):
                    queries[row, head, element] = narrow(rotated[element], queries)
            else:
                for element in range(head_dim):
                    keys[head - num_heads, block, offset, element] = narrow(rotated[element], keys)
        for head in range(num_kv_heads):
            for element in range(head_dim):
                values[head, block, offset, element] = heads[row, num_heads + num_kv_heads + head, element]


@kernel
def add(rows: Any, others: Any) -> None:
    """Add rows [num_rows, size] to the first."""
    for row in range(rows.shape[0]):
        for element in range(rows.shape[1]):
            rows[row, element] = narrow(widen(rows[row, element]) + widen(others[row, element]), rows)


@kernel
def before_attention(
    hidden: Any, norm: Any, product: Any, angles: Any, slots: Any, kv: Any, queries: Any, following: Any
) -> None:
    """Normalise, project, rotate; write K and V into their slots, queries into `queries`.

    Arguments are those of `rotate_and_store` and `after_attention`; `product` makes queries, keys and values.
    """
    num_rows, num_heads, head_dim = queries.shape
    num_heads += 2 * kv[0].shape[0]
    normalised = np.empty_like(hidden)
    normalise(hidden, norm[0], norm[1], normalised)
    projected = np.empty((num_rows, num_heads * head_dim), hidden.dtype)
    multiply(normalised, product[0], product[1], projected)
    prefetch_start(following)
    heads = projected.reshape((num_rows, num_heads, head_dim))
    rotate_and_store(heads, angles[0], angles[1], slots, kv[0], kv[1], queries)


@kernel
def after_attention(
    hidden: Any, attended: Any, output: Any, norm: Any, gate_up: Any, num_gates: Any, down: Any, following: Any
) -> None:
    """Project what was attended to, add, normalise, gate, add; `hidden` is replaced by what the layer makes of it.

    Products are weight and bias, gates first; `norm` is weight and epsilon; `following` is the next product's weight.
    """
    num_rows = hidden.shape[0]
    delta, normalised = np.empty_like(hidden), np.empty_like(hidden)
    multiply(attended.reshape((num_rows, attended.shape[1] * attended.shape[2])), output[0], output[1], delta)
    prefetch_start(gate_up[0])
    add(hidden, delta)
    normalise(hidden, norm[0], norm[1], normalised)
    both = np.empty((num_rows, 2 * num_gates), hidden.dtype)
    gated = np.empty((num_rows, num_gates), hidden.dtype)
    multiply(normalised, gate_up[0], gate_up[1], both)
    prefetch_start(down[0])
    gate(both, gated)
    multiply(gated, down[0], down[1], delta)
    prefetch_start(following)
    add(hidden, delta)


NUM_ADDRESSES = 12
"""Of a layer: the weights of both norms; weight and bias of queries, keys and values side by side, of the output, of
gates and others, and of down; K and V."""


@kernel
def run_layers(
    hidden: Any, addresses: Any, first: Any, num_gates: Any, angles: Any, slots: Any, attention: Any, head: Any
) -> None:
    """Pass rows through all layers; K and V are written.

    `hidden` is replaced by what the layers make of it; `addresses` are [num_layers, NUM_ADDRESSES]; `first` has the
    first layer's arrays in their order, and the epsilon of its norms behind them; `attention` its address, how many
    heads queries have, the single queries, and the factor of the scores; `head` the weight after the last layer.
    """
    (norm, mlp_norm, qkv, qkv_bias, out, out_bias, gate_up, gate_up_bias, down, down_bias, keys, values, epsilon) = (
        first
    )
    address, num_query_heads, single, scaling = attention
    num_layers, num_rows = len(addresses), len(hidden)
    queries = np.empty((num_rows, num_query_heads, keys.shape[3]), hidden.dtype)
    attended = np.empty((num_rows, num_query_heads, values.shape[3]), hidden.dtype)
    for layer in range(num_layers):
        own = addresses[layer]
        kv = (at_address(keys, own[10]), at_address(values, own[11]))
        output = (at_address(out, own[4]), at_address(out_bias, own[5]))
        before_attention(
            hidden,
            (at_address(norm, own[0]), epsilon),
            (at_address(qkv, own[2]), at_address(qkv_bias, own[3])),
            angles,
            slots,
            kv,
            queries,
            output[0],
        )
        attend(address, queries, kv[0], kv[1], single, scaling, attended)
        after_attention(
            hidden,
            attended,
            output,
            (at_address(mlp_norm, own[1]), epsilon),
            (at_address(gate_up, own[6]), at_address(gate_up_bias, own[7])),
            num_gates,
            (at_address(down, own[8]), at_address(down_bias, own[9])),
            at_address(qkv, addresses[layer + 1, 2]) if layer + 1 < num_layers else head,
        )
