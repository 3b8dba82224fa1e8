"""The projections of a layer as few large products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import linear

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
        return (product if self._is_packed else linear)(rows, self._weight, self._bias)


def _bias_of(module: torch.nn.Linear) -> torch.Tensor:
    return module.weight.new_zeros(module.out_features) if module.bias is None else module.bias
