"""The projections of a layer as few large products."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baton.engine.runners.torch.ops.cpu.huge_pages import MemoryRange
from baton.engine.runners.torch.ops.cpu.kernel_checks import Array, array_of
from baton.engine.runners.torch.ops.cpu.weights import laid_out


class Linear:
    """y = x W^T + b, of one projection or of several of the same input, outputs side by side.

    Attributes:
        dtype: Of the weights.
        num_outputs: Outputs of all projections.
        num_streamed_rows: Rows up to which Baton's kernel multiplies.

    Args:
        modules: The projections, in order of their outputs. Their weights are copied.
    """

    def __init__(self, modules: Sequence[torch.nn.Linear]) -> None:
        weight = torch.cat([module.weight for module in modules])
        has_bias = any(module.bias is not None for module in modules)
        self.dtype = weight.dtype
        self._bias = torch.cat([_bias_of(module) for module in modules]) if has_bias else None
        self.num_outputs = len(weight)
        self._weight = laid_out(weight)
        self.num_streamed_rows = self._weight.max_streamed_rows
        if self.num_streamed_rows:
            self._arrays = (self._weight.array(), array_of(weight.new_empty(0) if self._bias is None else self._bias))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [num_rows, num_outputs] of [num_rows, num_inputs]."""
        if 0 < rows.shape[0] <= self.num_streamed_rows:
            return self._stream(rows)
        return self._weight.product(rows, self._bias)

    def memory(self) -> MemoryRange:
        """Return where the weights are, on a CPU."""
        return self._weight.memory()

    def arrays(self) -> tuple[Array, Array]:
        """Return the weight as kernels take it and the bias, which may be empty; `num_streamed_rows` is not 0."""
        return self._arrays

    def _stream(self, rows: torch.Tensor) -> torch.Tensor:
        from baton.engine.runners.torch.ops.cpu.numba_kernels.product import multiply

        output = rows.new_empty(rows.shape[0], self.num_outputs)
        multiply(array_of(rows.contiguous()), *self._arrays, array_of(output))
        return output


def _bias_of(module: torch.nn.Linear) -> torch.Tensor:
    return module.weight.new_zeros(module.out_features) if module.bias is None else module.bias
