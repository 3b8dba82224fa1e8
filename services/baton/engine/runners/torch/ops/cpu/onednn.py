"""Matrix products by oneDNN on a CPU, and whether to trust them.

For float32, torch multiplies by MKL, which on CPUs that are not Intel's takes its slow code: oneDNN is 2.0 to 2.5 times
as fast there, and 1.3 times on weights that it has laid out for itself wherever MKL is quick. Products in bfloat16 gain
1.1 (512 rows) to 2.2 times (1 row) by the layout. torch reaches this by private operators only, hence the check.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch.nn.functional import linear

log = logging.getLogger(__name__)

PACKED_ROWS = 32
"""Rows of input that a weight is laid out for. For inputs of 1 to 512 rows this layout is within 3 % of the best; one
for a single row is up to 1.8 times slower."""
_MAX_RELATIVE_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight [num_outputs, num_inputs] in oneDNN's own layout, of use to `product` alone."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
    return packed


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return rows [num_rows, num_inputs] times the transposed weight, plus the bias: [num_rows, num_outputs].

    Args:
        rows: On the CPU.
        weight: [num_outputs, num_inputs], packed or not; any strides.
        bias: [num_outputs].
    """
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return result


@cache
def is_sound(dtype: torch.dtype) -> bool:
    """Return whether `product` is there and right in a dtype, found by trying; the reason is logged where it is not."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, 160, generator=generator).to(dtype)
    bias = torch.randn(96, generator=generator).to(dtype)
    inputs = [torch.randn(num_rows, 160, generator=generator).to(dtype) for num_rows in (1, 7, 130)]
    try:
        forms = (pack(weight), weight, weight.t().contiguous().t())
        errors = [_relative_error(rows, weight, form, bias) for rows in inputs for form in forms]
    except (RuntimeError, AttributeError) as error:
        log.warning("onednn_off dtype=%s cause=%r", dtype, str(error))
        return False
    if not all(error <= _MAX_RELATIVE_ERROR[dtype] for error in errors):  # also where one is not a number
        log.warning("onednn_off dtype=%s relative_errors=%s", dtype, errors)
        return False
    return True


def _relative_error(rows: torch.Tensor, weight: torch.Tensor, form: torch.Tensor, bias: torch.Tensor) -> float:
    expected = linear(rows.double(), weight.double(), bias.double())
    return float((product(rows, form, bias).double() - expected).abs().max() / expected.abs().max())
