"""Projections of the same input as one large product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import linear

from baton.engine.runners.torch.ops.device import MemoryRange, memory_of

PACKED = "packed_weight"
"""Attribute of a module whose weight is a `checkpoint.weights.Weight` in few bits, its own without memory, or was
rounded."""
Projection = Callable[[torch.Tensor], torch.Tensor]
"""Returns [num_rows, num_outputs] of [num_rows, num_inputs]."""


class Linear(ABC):
    """y = x W^T + b, the weight in the layout of what multiplies by it.

    `weight` is [num_outputs, num_inputs], `bias` [num_outputs]. `dtype`: of the weight as it was given. `num_outputs`:
    outputs of all projections.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.dtype = weight.dtype
        self.num_outputs = len(weight)
        self._bias = bias

    @abstractmethod
    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [num_rows, num_outputs] of [num_rows, num_inputs]."""

    @abstractmethod
    def memory(self) -> MemoryRange:
        """Return where the weight is, on a CPU."""


class PlainLinear(Linear):
    """A weight as checkpoints have it, multiplied by torch."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._weight = weight

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return linear(rows, self._weight, self._bias)

    def memory(self) -> MemoryRange:
        """Return where the weight is."""
        return memory_of(self._weight)


def side_by_side(modules: Sequence[torch.nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return weight and bias of projections of the same input, outputs in order; the weights are copied."""
    return torch.cat([module.weight for module in modules]), biases_of(modules)


def biases_of(modules: Sequence[torch.nn.Linear]) -> torch.Tensor | None:
    """Return the biases of projections, zeros where one has none; None where none has."""
    if all(module.bias is None for module in modules):
        return None
    zeros = modules[0].weight.new_zeros
    return torch.cat([zeros(module.out_features) if module.bias is None else module.bias for module in modules])


def kind_of(module: torch.nn.Linear) -> tuple[object, ...] | None:
    """Return what packed weights have in common that can lie in one array; None: a module's is not packed."""
    weight = getattr(module, PACKED, None)
    return weight and (weight.kind, module.bias is None)
