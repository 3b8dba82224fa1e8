"""Products on a CPU: by oneDNN on weights that it has laid out for itself, by torch on transposed ones, or by kernels.

For float32, torch multiplies by MKL, which on CPUs that are not Intel's takes its slow code: oneDNN is 2.0 to 2.5 times
as fast there, and 1.3 times on weights that it has laid out for itself wherever MKL is quick. Products in bfloat16 gain
1.1 (512 rows) to 2.2 times (1 row) by the layout. torch reaches this by private operators only: `checks` tries them.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from baton.engine.runners.torch.ops.cpu.numba_kernels import PANEL_OUTPUTS, PANEL_WIDTHS, STRIP_INPUTS, STRIP_OUTPUTS
from baton.engine.runners.torch.ops.device import MemoryRange, memory_of
from baton.engine.runners.torch.ops.eager.linear import Linear
from baton.engine.runners.torch.ops.pool import Array, array_of

PACKED_ROWS = 32
"""Rows of input that a weight is laid out for. For inputs of 1 to 512 rows this layout is within 3 % of the best; one
for a single row is up to 1.8 times slower."""
_SHARED_WEIGHTS = 1 << 18
"""A product of so many weights is worth being shared out over threads."""


class CpuLinear(Linear):
    """A product of which a kernel of Baton's does those of few rows, and a library the others.

    `weight`: [num_outputs, num_inputs]. `bias`: [num_outputs]. `max_streamed_rows`: rows up to which the kernel
    multiplies, where the layout turns out to be one that it knows. `num_streamed_rows`: rows up to which it does; 0: it
    never does. `num_threads`: threads that the kernel may share out its product over.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, *, max_streamed_rows: int = 0, num_threads: int = 1
    ) -> None:
        super().__init__(weight, bias)
        array = self._lay_out(weight, is_streamed=max_streamed_rows > 0)
        self.num_streamed_rows = 0 if array is None else max_streamed_rows
        if array is not None:
            from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import multiply
            from baton.engine.runners.torch.ops.cpu.numba_kernels.team import team_of

            self._multiply = partial(multiply, team_of(num_threads if weight.numel() >= _SHARED_WEIGHTS else 1))
            self._arrays = (array, array_of(weight.new_empty(0) if bias is None else bias))

    @abstractmethod
    def _lay_out(self, weight: torch.Tensor, *, is_streamed: bool) -> Array | None:
        """Keep a weight; return what the kernel takes for it where it is to multiply, and can."""

    @abstractmethod
    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product by a library."""

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        if not 0 < rows.shape[0] <= self.num_streamed_rows:
            return self.product(rows)
        output = rows.new_empty(rows.shape[0], self.num_outputs)
        self._multiply(array_of(rows.contiguous()), *self._arrays, array_of(output))
        return output

    def arrays(self) -> tuple[Array, Array]:
        """Return the weight as kernels take it and the bias, which may be empty; `num_streamed_rows` is not 0."""
        return self._arrays


class PackedLinear(CpuLinear):
    """A weight in oneDNN's own layout, which is one of panels; `checks.is_sound` in its dtype."""

    def _lay_out(self, weight: torch.Tensor, *, is_streamed: bool) -> Array | None:
        self._weight = pack(weight)
        return panels_of(self._weight, weight) if is_streamed else None

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product by oneDNN, of a few rows more where that leaves it fewer kernels to keep."""
        return product(padded_rows(rows), self._weight, self._bias)[: len(rows)]

    def memory(self) -> MemoryRange:
        """Return where the weight is."""
        return MemoryRange(torch.ops.mkldnn.data_ptr(self._weight), torch.ops.mkldnn._nbytes(self._weight))


class WidenedLinear(Linear):
    """A weight of half precision in float32, for a CPU that has no instructions for products of half precision.

    There a product in bfloat16 takes 60 times as long as one in float32, which rounds its sums to bfloat16 all the
    same; the price is twice the memory.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._wide = PackedLinear(weight.float(), None if bias is None else bias.float())

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product in float32, rounded."""
        return self._wide(rows.float()).to(rows.dtype)

    def memory(self) -> MemoryRange:
        """Return where the weight is."""
        return self._wide.memory()


class TransposedLinear(CpuLinear):
    """A weight transposed, in strips of inputs; float32 or bfloat16.

    bfloat16 is widened for each product of many rows: 30 of the 1400 ms of 512 rows of SmolLM-135M, where reading half
    the bytes makes few rows faster.
    """

    def _lay_out(self, weight: torch.Tensor, *, is_streamed: bool) -> Array | None:
        num_outputs, num_inputs = weight.shape
        self._strips = transposed(weight)
        self._weight = self._strips[:num_inputs, :num_outputs]
        return array_of(self._strips) if is_streamed else None

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product by torch, in float32."""
        wide, weight = rows.float(), self._weight.float()
        result = wide @ weight if self._bias is None else torch.addmm(self._bias.float(), wide, weight)
        return result.to(rows.dtype)

    def memory(self) -> MemoryRange:
        """Return where the weight is."""
        return memory_of(self._strips)


class Layout(NamedTuple):
    """How weights are held, and why."""

    form: Callable[[torch.Tensor, torch.Tensor | None], Linear]
    """Makes a product of a weight [num_outputs, num_inputs] and a bias [num_outputs]."""
    cause: str
    """In words."""


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight [num_outputs, num_inputs] in oneDNN's own layout, of use to `product` alone."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
    return packed


def product(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return rows [num_rows, num_inputs] times the transposed weight, packed or not, of any strides, plus the bias."""
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return result


def panels_of(packed: torch.Tensor, weight: torch.Tensor) -> Array | None:
    """Return a packed weight as panels, which live no longer than it does; None if it does not consist of such.

    oneDNN chooses its layout by the sizes of a weight, the processor and the number of threads; `packed` is what `pack`
    returned of `weight`.
    """
    num_words = torch.ops.mkldnn._nbytes(packed) // 4
    kind = ctypes.c_uint32 if weight.dtype is torch.bfloat16 else ctypes.c_float
    words = np.ctypeslib.as_array((kind * num_words).from_address(torch.ops.mkldnn.data_ptr(packed)))
    for width in PANEL_WIDTHS:
        num_panels = -(-weight.shape[0] // width)
        num_steps, num_left = divmod(num_words, num_panels * width)  # some of them past the last input, of zeros
        if num_left or num_steps * 4 < weight.shape[1] * weight.itemsize or num_panels * width < PANEL_OUTPUTS:
            continue
        panels = words.reshape(num_panels, num_steps, width)
        if _are_panels_of(panels, weight):
            return panels
    return None


def _are_panels_of(panels: Array, weight: torch.Tensor) -> bool:
    """Return whether panels hold a weight: those of some of its inputs, and the last, are looked at."""
    num_outputs, num_inputs = weight.shape
    halves = 4 // weight.itemsize
    expected = array_of(weight.detach())
    held = panels.view(np.uint16 if halves == 2 else np.float32).reshape(*panels.shape, halves)
    for place in {0, num_inputs // 2, num_inputs - 1}:
        own = held[:, place // halves, :, place % halves].reshape(-1)[:num_outputs]
        if not np.array_equal(own, expected[:, place]):
            return False
    return True


def transposed(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight [num_outputs, num_inputs] as strips take it: transposed, padded by zeros to whole strips.

    Returns [num_inputs, num_outputs], contiguous, inputs rounded up to 8 and outputs to 32.
    """
    num_outputs, num_inputs = weight.shape
    turned = weight.new_zeros(
        -(-num_inputs // STRIP_INPUTS) * STRIP_INPUTS, -(-num_outputs // STRIP_OUTPUTS) * STRIP_OUTPUTS
    )
    turned[:num_inputs, :num_outputs] = weight.t()
    return turned


def padded_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return rows [num_rows, num_inputs], with a few of zeros behind them where oneDNN is not to see so many.

    oneDNN makes and keeps a kernel for every number of rows and weight, of 0.7 MB and for the time of a product or two.
    Batches and prompts have any number of rows; this leaves few: 1 to 8, then four to each doubling up to 128,
    then multiples of 32.
    """
    num_rows = len(rows)
    unit = min(32, 1 << max(0, (num_rows - 1).bit_length() - 3))
    return pad(rows, (0, 0, 0, -num_rows % unit)) if num_rows % unit else rows
