"""All layers of a decode step of few rows, in one call; and its parts: products, and what lies between them.

Products read weights in oneDNN's own layout or transposed, at the rate of memory: on a core that reads 40 GB/s oneDNN's
product of one row takes 1.2 times as long in float32 as reading the weights, and 1.3 times in bfloat16. What lies
between takes one pass over few rows each: no intermediate array, no dispatch. Each product of a layer ends by asking
memory for the beginning of the next one's weights: what goes between them takes a microsecond, in which memory would
rest. What Python does between calls takes longer than it looks, hence one call for all layers, which are alike but for
the addresses of their weights and of their K and V.

A team of threads shares out the outputs of each product, and in attention the heads of K and V of each sequence; all
else each member does for itself, which is sooner than waiting for each other once more. Every sum is that of one
thread, whatever the team.
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
from baton.engine.runners.torch.ops.cpu.numba_kernels.team import run_by_team, share, wait_for_all
from baton.engine.runners.torch.ops.cpu.numba_kernels.vectors import at_address, prefetch_from

_SUMS_ELEMENTS = 32 * 1024
"""Sums of a block of outputs by strips: 128 KiB, which stay in a core's cache while the block's weights pass by."""
_one_row, _two_rows, _four_rows = panel_product(1), panel_product(2), panel_product(4)
_one_row_of_strip, _two_rows_of_strip, _four_rows_of_strip = strip_product(1), strip_product(2), strip_product(4)


@kernel
def multiply(team: Any, rows: Any, weight: Any, bias: Any, output: Any) -> None:
    """Write rows times the transposed weight, plus the bias; sums are float32.

    `team`: of threads, as `team.team_of` returns it. `rows`: [num_rows, num_inputs]. `weight`: in panels of 64 outputs,
    [num_panels, num_inputs, 64] float32, or [num_panels, num_inputs / 2, 64] uint32 of pairs of bfloat16, or in two or
    more of 32; or transposed, [num_inputs, num_outputs] float32, or uint16 of bfloat16. Outputs and inputs are padded
    by zeros. Or in few bits, as `affine` has them. `bias`: [num_outputs], of the kind of the rows; or empty. `output`:
    [num_rows, num_outputs].
    """
    run_by_team(team, _multiply, (rows, weight, bias, output))


@kernel
def _multiply(member: Any, rows: Any, weight: Any, bias: Any, output: Any) -> None:
    """Write a member's share of outputs; the arguments are those of `multiply`, but for the team."""
    span = _share_of(member, weight)
    if weight.ndim > 3:
        multiply_affine(rows, weight, bias, output, span)
    else:
        _multiply_whole(rows, weight, bias, output, span)


@kernel
def _share_of(member: Any, weight: Any) -> Any:
    """Return which panels, columns or blocks [first, end) of a weight are a member's."""
    if weight.ndim == 2:
        return share(weight.shape[1], STRIP_OUTPUTS, member)
    return share(weight.shape[0], PANEL_OUTPUTS // weight.shape[2] if weight.ndim == 3 else 1, member)


@kernel
def _ask_for_share(member: Any, weight: Any) -> None:
    """Ask memory for the beginning of a member's share of a weight."""
    first, _ = _share_of(member, weight)
    prefetch_from(weight, first if weight.ndim == 2 else first * (weight.size // weight.shape[0]))


@kernel
def _multiply_whole(rows: Any, weight: Any, bias: Any, output: Any, span: Any) -> None:
    num_rows, num_inputs = rows.shape
    num_padded = weight.shape[1] * 4 // rows.itemsize if weight.ndim == 3 else weight.shape[0]
    inputs = np.zeros((-(-num_rows // 4) * 4 if num_rows > 2 else num_rows, num_padded), np.float32)
    for row in range(num_rows):
        for element in range(num_inputs):
            inputs[row, element] = widen(rows[row, element])
    if weight.ndim == 3:
        _multiply_panels(inputs, weight, bias, output, span)
    else:
        _multiply_strips(inputs, weight, bias, output, span)


@kernel
def _multiply_panels(inputs: Any, panels: Any, bias: Any, output: Any, span: Any) -> None:
    num_rows, (num_panels, num_steps, width) = len(output), panels.shape
    sums = np.empty((inputs.shape[0], PANEL_OUTPUTS), np.float32)
    weights, num_together = panels.reshape(panels.size), PANEL_OUTPUTS // width
    for each in range(span[0], span[1], num_together):
        start = min(each, num_panels - num_together) * width  # of an odd number the last is read beside one once more
        panel = weights[start * num_steps : (start + PANEL_OUTPUTS) * num_steps].reshape((num_steps, PANEL_OUTPUTS))
        if num_rows == 1:
            _one_row(panel, width, inputs, 0, sums)
        elif num_rows == 2:
            _two_rows(panel, width, inputs, 0, sums)
        else:
            for first_row in range(0, num_rows, 4):
                _four_rows(panel, width, inputs, first_row, sums)
        _write(sums, start, (start, start + PANEL_OUTPUTS), bias, output)


@kernel
def _multiply_strips(inputs: Any, weight: Any, bias: Any, output: Any, span: Any) -> None:
    num_rows = len(output)
    sums = np.zeros((inputs.shape[0], weight.shape[1]), np.float32)
    num_block_outputs = max(_SUMS_ELEMENTS // inputs.shape[0] // STRIP_OUTPUTS, 1) * STRIP_OUTPUTS
    for start in range(span[0], span[1], num_block_outputs):
        end = min(start + num_block_outputs, span[1])
        for first_input in range(0, weight.shape[0], STRIP_INPUTS):
            if num_rows == 1:
                _one_row_of_strip(weight, first_input, inputs, 0, sums, start, end)
            elif num_rows == 2:
                _two_rows_of_strip(weight, first_input, inputs, 0, sums, start, end)
            else:
                for first_row in range(0, num_rows, 4):
                    _four_rows_of_strip(weight, first_input, inputs, first_row, sums, start, end)
    _write(sums, 0, span, bias, output)


@kernel
def _write(sums: Any, origin: Any, span: Any, bias: Any, output: Any) -> None:
    """Write sums, those of outputs from `origin` on, plus the bias, to outputs of a span, as far as there are such."""
    for row in range(output.shape[0]):
        for place in range(span[0], min(span[1], output.shape[1])):
            total = sums[row, place - origin]
            if len(bias):
                total += widen(bias[place])
            output[row, place] = narrow(total, output)


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
    member: Any, heads: Any, cosines: Any, signed_sines: Any, slots: Any, keys: Any, values: Any, queries: Any
) -> None:
    """Write queries, rotated, and K, rotated, and V into their slots among the positions of all blocks of a layer.

    `heads` are queries, keys and values side by side, [num_rows, num_heads + 2 * num_kv_heads, head_dim]; cosines and
    sines, the first half negated, [num_rows, 1, head_dim]. A member of a team has some heads of K and V of some rows.
    """
    num_rows, num_heads, head_dim = queries.shape
    num_kv_heads, block_tokens = keys.shape[0], keys.shape[2]
    num_groups = num_heads // num_kv_heads
    first, end = share(num_rows * num_kv_heads, 1, member)
    for each in range(first, end):
        row, head = divmod(each, num_kv_heads)
        block, offset = divmod(slots[row], block_tokens)
        angles = cosines[row, 0], signed_sines[row, 0]
        for query in range(head * num_groups, (head + 1) * num_groups):
            _rotate(heads[row, query], angles, queries[row, query])
        _rotate(heads[row, num_heads + head], angles, keys[head, block, offset])
        for element in range(head_dim):
            values[head, block, offset, element] = heads[row, num_heads + num_kv_heads + head, element]


@kernel
def _rotate(head: Any, angles: Any, output: Any) -> None:
    cosines, signed_sines = angles
    half = len(head) // 2
    for element in range(half):
        first, second = widen(head[element]), widen(head[half + element])
        turned = first * widen(cosines[element]) + second * widen(signed_sines[element])
        output[element] = narrow(turned, output)
        turned = second * widen(cosines[half + element]) + first * widen(signed_sines[half + element])
        output[half + element] = narrow(turned, output)


@kernel
def add(rows: Any, others: Any) -> None:
    """Add rows [num_rows, size] to the first."""
    for row in range(rows.shape[0]):
        for element in range(rows.shape[1]):
            rows[row, element] = narrow(widen(rows[row, element]) + widen(others[row, element]), rows)


NUM_ADDRESSES = 12
"""Of a layer: the weights of both norms; weight and bias of queries, keys and values side by side, of the output, of
gates and others, and of down; K and V."""


@kernel
def run_layers(
    team: Any,
    hidden: Any,
    addresses: Any,
    first: Any,
    num_gates: Any,
    angles: Any,
    slots: Any,
    attention: Any,
    head: Any,
) -> None:
    """Pass rows through all layers; K and V are written.

    `team`: of threads, as `team.team_of` returns it. `hidden` is replaced by what the layers make of it; `addresses`
    are [num_layers, NUM_ADDRESSES]; `first` has the first layer's arrays in their order, and the epsilon of its norms
    behind them; `attention` its address, how many heads queries have, the single queries, and the factor of the scores;
    `head` the weight after the last layer.
    """
    num_rows, num_heads, keys, values = len(hidden), attention[1], first[10], first[11]
    shared = (
        np.empty((num_rows, num_heads + 2 * keys.shape[0], keys.shape[3]), hidden.dtype),
        np.empty((num_rows, num_heads, keys.shape[3]), hidden.dtype),
        np.empty((num_rows, num_heads, values.shape[3]), hidden.dtype),
        np.empty_like(hidden),
        np.empty((num_rows, 2 * num_gates), hidden.dtype),
    )
    run_by_team(team, _run_layers, (hidden, addresses, first, angles, slots, attention, head, shared))


@kernel
def _run_layers(
    member: Any,
    result: Any,
    addresses: Any,
    first: Any,
    angles: Any,
    slots: Any,
    attention: Any,
    head: Any,
    shared: Any,
) -> None:
    """Do a member's share of all layers; each has a copy of the rows, of which the first's is the result.

    Members share `projected`, `queries`, `attended`, `delta` and `both`, what each product makes: a barrier lies
    between one's last look at them and another's next writing.
    """
    address, _, single, scaling = attention
    heads, queries, attended, delta, both = shared
    num_rows, epsilon = len(result), first[12]
    projected = heads.reshape((num_rows, heads.shape[1] * heads.shape[2]))
    answers = attended.reshape((num_rows, attended.shape[1] * attended.shape[2]))
    hidden, normalised = result.copy(), np.empty_like(result)
    gated = np.empty((num_rows, both.shape[1] // 2), result.dtype)
    for layer in range(len(addresses)):
        norms, qkv, out, gate_up, down, kv = _arrays(first, addresses[layer])
        normalise(hidden, norms[0], epsilon, normalised)
        _multiply(member, normalised, qkv[0], qkv[1], projected)
        wait_for_all(member)
        rotate_and_store(member, heads, angles[0], angles[1], slots, kv[0], kv[1], queries)
        attend(member, address, queries, kv[0], kv[1], single, scaling, attended)
        _ask_for_share(member, out[0])
        wait_for_all(member)
        _multiply(member, answers, out[0], out[1], delta)
        _ask_for_share(member, gate_up[0])
        wait_for_all(member)
        add(hidden, delta)
        normalise(hidden, norms[1], epsilon, normalised)
        _multiply(member, normalised, gate_up[0], gate_up[1], both)
        _ask_for_share(member, down[0])
        wait_for_all(member)
        gate(both, gated)
        _multiply(member, gated, down[0], down[1], delta)
        if layer + 1 < len(addresses):
            _ask_for_share(member, at_address(qkv[0], addresses[layer + 1, 2]))
        else:
            _ask_for_share(member, head)
        wait_for_all(member)
        add(hidden, delta)
    if member[0] == 0:
        result[:] = hidden


@kernel
def _arrays(like: Any, addresses: Any) -> Any:
    """Return the arrays of one layer, which are like the first's."""
    norms = at_address(like[0], addresses[0]), at_address(like[1], addresses[1])
    qkv = at_address(like[2], addresses[2]), at_address(like[3], addresses[3])
    output = at_address(like[4], addresses[4]), at_address(like[5], addresses[5])
    gate_up = at_address(like[6], addresses[6]), at_address(like[7], addresses[7])
    down = at_address(like[8], addresses[8]), at_address(like[9], addresses[9])
    return norms, qkv, output, gate_up, down, (at_address(like[10], addresses[10]), at_address(like[11], addresses[11]))
