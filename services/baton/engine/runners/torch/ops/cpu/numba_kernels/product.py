"""Products of few rows with weights in oneDNN's own layout or transposed, at the rate of memory.

On a core that reads 40 GB/s oneDNN's product of one row takes 1.2 times as long in float32 as reading the weights, and
1.3 times in bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baton.engine.runners.torch.ops.cpu.numba_kernels import PANEL_OUTPUTS, STRIP_INPUTS, STRIP_OUTPUTS
from baton.engine.runners.torch.ops.cpu.numba_kernels.compiling import kernel
from baton.engine.runners.torch.ops.cpu.numba_kernels.numbers import narrow, widen
from baton.engine.runners.torch.ops.cpu.numba_kernels.panels import panel_product
from baton.engine.runners.torch.ops.cpu.numba_kernels.strips import strip_product

MAX_PANEL_ROWS = 8
"""Rows up to which panels beat oneDNN."""
_SUMS_ELEMENTS = 32 * 1024
"""Sums of a block of outputs by strips: 128 KiB, which stay in a core's cache while the block's weights pass by."""
_one_row, _two_rows, _four_rows = panel_product(1), panel_product(2), panel_product(4)
_one_row_of_strip, _two_rows_of_strip, _four_rows_of_strip = strip_product(1), strip_product(2), strip_product(4)


@kernel
def multiply(rows: Any, weight: Any, bias: Any, output: Any) -> None:
    """Write rows times the transposed weight, plus the bias; sums are float32.

    Args:
        rows: [num_rows, num_inputs].
        weight: In panels of 64 outputs, [num_panels, num_inputs, 64] float32, or [num_panels, num_inputs / 2, 64]
            uint32 of pairs of bfloat16; or transposed, [num_inputs, num_outputs] float32, or uint16 of bfloat16.
            Outputs and inputs are padded by zeros.
        bias: [num_outputs], of the kind of the rows; or empty.
        output: [num_rows, num_outputs].
    """
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
    num_rows = len(output)
    sums = np.empty((inputs.shape[0], PANEL_OUTPUTS), np.float32)
    for panel in range(panels.shape[0]):
        if num_rows == 1:
            _one_row(panels[panel], inputs, 0, sums)
        elif num_rows == 2:
            _two_rows(panels[panel], inputs, 0, sums)
        else:
            for first_row in range(0, num_rows, 4):
                _four_rows(panels[panel], inputs, first_row, sums)
        _write(sums, panel * PANEL_OUTPUTS, bias, output)


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
