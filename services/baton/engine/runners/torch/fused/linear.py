"""The projections of a layer as few large products."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import linear, pad

from baton.engine.runners.torch.compiled.support import Array, array_of, can_multiply, panels_of
from baton.engine.runners.torch.huge_pages import Memory, memory_of
from baton.engine.runners.torch.onednn import is_sound, pack, product

_MAX_STREAMED_ROWS = {torch.float32: 8, torch.bfloat16: 4}
"""Rows up to which one thread is done sooner by Baton's kernel than by oneDNN: at 1 and 8 rows of SmolLM-135M in
float32, 14 and 20 ms against 17 and 24; at 1 and 4 rows in bfloat16, 8.0 and 11.5 against 10.3 and 11.7."""


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
        self._is_widened = is_widened(weight)
        if self._is_widened:
            weight = weight.float()
            self._bias = None if self._bias is None else self._bias.float()
        self._is_packed = weight.device.type == "cpu" and is_sound(weight.dtype)
        self._weight = pack(weight) if self._is_packed else weight
        self.num_streamed_rows = 0
        if self._is_packed and not self._is_widened and is_one_thread() and can_multiply(weight.dtype):
            self.num_streamed_rows = _MAX_STREAMED_ROWS[weight.dtype]
            self._panels = panels_of(self._weight, self.num_outputs, weight.dtype)
            self._bias_array = array_of(weight.new_empty(0) if self._bias is None else self._bias)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return [num_rows, num_outputs] of [num_rows, num_inputs]."""
        if not self._is_packed:
            return linear(rows, self._weight, self._bias)
        num_rows = rows.shape[0]
        if 0 < num_rows <= self.num_streamed_rows:
            return self._stream(rows)
        num_missing = padded_rows(num_rows) - num_rows
        padded = pad(rows, (0, 0, 0, num_missing)) if num_missing else rows
        if self._is_widened:
            return product(padded.float(), self._weight, self._bias)[:num_rows].to(rows.dtype)
        return product(padded, self._weight, self._bias)[:num_rows]

    def memory(self) -> Memory:
        """Return where the weights are, on a CPU."""
        if not self._is_packed:
            return memory_of(self._weight)
        return Memory(torch.ops.mkldnn.data_ptr(self._weight), torch.ops.mkldnn._nbytes(self._weight))

    def arrays(self) -> tuple[Array, Array]:
        """Return the panels and the bias, which may be empty, where `num_streamed_rows` is not 0."""
        return self._panels, self._bias_array

    def _stream(self, rows: torch.Tensor) -> torch.Tensor:
        from baton.engine.runners.torch.compiled.product import multiply

        output = rows.new_empty(rows.shape[0], self.num_outputs)
        multiply(array_of(rows.contiguous()), self._panels, self._bias_array, array_of(output))
        return output


def is_widened(weight: torch.Tensor) -> bool:
    """Return whether a weight of half precision is held in float32: a CPU that has no instructions for its products.

    There a product in bfloat16 takes 60 times as long as one in float32, which rounds its sums to bfloat16 all the
    same; the price is twice the memory.
    """
    is_slow = weight.device.type == "cpu" and weight.dtype is not torch.float32 and not is_sound(weight.dtype)
    return is_slow and is_sound(torch.float32)


def is_one_thread() -> bool:
    """Return whether torch computes on one thread: kernels that know no other beat it then."""
    num_threads: int = torch.get_num_threads()
    return num_threads == 1


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
