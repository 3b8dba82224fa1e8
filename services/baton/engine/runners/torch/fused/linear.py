"""The projections of a layer as few large products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import linear, pad

from baton.engine.runners.torch.onednn import is_sound, pack, product


class Linear:
    """y = x W^T + b, of one projection or of several of the same input, outputs side by side.

    Args:
        modules: The projections, in order of their outputs. Their weights are copied.
    """

    def __init__(self, modules: Sequence[torch.nn.Linear]) -> None:
        weight = torch.cat([module.weight for module in modules])
        has_bias = any(module.bias is not None for module in modules)
        self._bias = torch.cat([_bias_of(module) for module in modules]) if has_bias else None
        self._is_packed = weight.device.type == "cpu" and is_sound(weight.dtype)
        self._weight = pack(weight) if self._is_packed else weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [num_rows, num_outputs] of [num_rows, num_inputs]."""
        if not self._is_packed:
            return linear(rows, self._weight, self._bias)
        num_rows = len(rows)
        num_missing = padded_rows(num_rows) - num_rows
        return product(pad(rows, (0, 0, 0, num_missing)) if num_missing else rows, self._weight, self._bias)[:num_rows]


def padded_rows(num_rows: int) -> int:
    """Return how many rows are multiplied where so many are wanted: `num_rows` or a few more.

    oneDNN makes and keeps a kernel for every number of rows and weight, of 0.7 MB and for the time of a product or two.
    Batches and prompts have any number of rows; this leaves few: 1 to 8, then four to each doubling up to 128,
    then multiples of 32.
    """
    if num_rows <= 4:
        return num_rows
    unit = min(32, 1 << (num_rows - 1).bit_length() - 3)
    return -(-num_rows // unit) * unit


def _bias_of(module: torch.nn.Linear) -> torch.Tensor:
    return module.weight.new_zeros(module.out_features) if module.bias is None else module.bias
