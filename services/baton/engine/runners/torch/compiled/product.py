"""Products of a few rows with weights in oneDNN's own layout, at the rate at which memory gives the weights.

On a core that reads 40 GB/s oneDNN's product of one row takes 1.2 times as long in float32 as reading the weights, and
1.3 times in bfloat16.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baton.engine.runners.torch.compiled.kernel import kernel
from baton.engine.runners.torch.compiled.numbers import narrow, widen
from baton.engine.runners.torch.compiled.vectors import PANEL_OUTPUTS, panel_product

MAX_ROWS = 8
"""Rows up to which this beats oneDNN."""
_one_row, _two_rows, _four_rows = panel_product(1), panel_product(2), panel_product(4)


@kernel
def multiply(rows: Any, panels: Any, bias: Any, output: Any) -> None:
    """Write rows times the transposed weight, plus the bias; sums are float32.

    Args:
        rows: [num_rows, num_inputs].
        panels: The weight, in panels of 64 outputs: [num_panels, num_inputs, 64] float32, or
            [num_panels, num_inputs / 2, 64] uint32 of pairs of bfloat16; outputs and inputs padded by zeros.
        bias: [num_outputs], of the kind of the rows; or empty.
        output: [num_rows, num_outputs].
    """
    num_rows, num_inputs = rows.shape
    num_padded = panels.shape[1] * 4 // rows.itemsize
    inputs = np.zeros((-(-num_rows // 4) * 4 if num_rows > 2 else num_rows, num_padded), np.float32)
    for row in range(num_rows):
        for element in range(num_inputs):
            inputs[row, element] = widen(rows[row, element])
    sums = np.empty((inputs.shape[0], PANEL_OUTPUTS), np.float32)
    for panel in range(panels.shape[0]):
        if num_rows == 1:
            _one_row(panels[panel], inputs, 0, sums)
        elif num_rows == 2:
            _two_rows(panels[panel], inputs, 0, sums)
        else:
            for first_row in range(0, num_rows, 4):
                _four_rows(panels[panel], inputs, first_row, sums)
        start = panel * PANEL_OUTPUTS
        for row in range(num_rows):
            for place in range(min(PANEL_OUTPUTS, output.shape[1] - start)):
                total = sums[row, place]
                if len(bias):
                    total += widen(bias[start + place])
                output[row, start + place] = narrow(total, output)
