"""In which layout a CPU or a GPU holds the weight of a product, and what multiplies by it.

On a CPU oneDNN multiplies by weights that it has laid out for itself; where MKL is quicker, which a trial of a tenth of
a second tells, torch's own product multiplies by transposed ones.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch.nn.functional import linear, pad

from baton.engine.runners.torch.ops.cpu.huge_pages import MemoryRange, memory_of
from baton.engine.runners.torch.ops.cpu.kernel_checks import (
    Array,
    array_of,
    can_multiply,
    can_stream_transposed,
    is_one_thread,
    panels_of,
    transposed,
)
from baton.engine.runners.torch.ops.cpu.onednn import is_sound, pack, product
from baton.engine.runners.torch.ops.cpu.trial import gain

log = logging.getLogger(__name__)

_MAX_PANEL_ROWS = {torch.float32: 8, torch.bfloat16: 4}
"""Rows up to which one thread is done sooner by Baton's kernel than by oneDNN: at 1 and 8 rows of SmolLM-135M in
float32, 14 and 20 ms against 17 and 24; at 1 and 4 rows in bfloat16, 8.0 and 11.5 against 10.3 and 11.7."""
_MAX_STRIP_ROWS = 32
"""Rows up to which strips beat MKL: on an EPYC with AVX2 16 rows of SmolLM-135M's layers take 77 ms against 102, 32
rows 138 against 142."""
_MIN_GAIN = 1.03
"""How many times as long oneDNN must take for weights to be transposed: less may be noise."""
_TRIAL_ROWS, _TRIAL_SIZE, _TRIAL_ROUNDS = 512, 768, 5


class Weight(ABC):
    """A weight [num_outputs, num_inputs] in the layout of what multiplies by it.

    Attributes:
        max_streamed_rows: Rows up to which Baton's kernel multiplies; 0: it never does.
    """

    max_streamed_rows: int = 0

    @abstractmethod
    def product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return rows [num_rows, num_inputs] times the transposed weight, plus the bias: [num_rows, num_outputs]."""

    @abstractmethod
    def memory(self) -> MemoryRange:
        """Return where it is, on a CPU."""

    def array(self) -> Array:
        """Return it as `compiled.product.multiply` takes it, where `max_streamed_rows` is not 0."""
        raise NotImplementedError


class PlainWeight(Weight):
    """As checkpoints have it.

    Args:
        weight: [num_outputs, num_inputs].
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product by torch."""
        return linear(rows, self._weight, bias)

    def memory(self) -> MemoryRange:
        """Return where it is."""
        return memory_of(self._weight)


class PackedWeight(Weight):
    """In oneDNN's own layout, which is one of panels.

    Args:
        weight: [num_outputs, num_inputs], on a CPU; `onednn.is_sound` in its dtype.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = pack(weight)
        self._panels = panels_of(self._weight, weight) if is_one_thread() and can_multiply(weight.dtype) else None
        if self._panels is not None:
            self.max_streamed_rows = _MAX_PANEL_ROWS[weight.dtype]

    def product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product by oneDNN, of a few rows more where that leaves it fewer kernels to keep."""
        num_rows = rows.shape[0]
        num_missing = padded_rows(num_rows) - num_rows
        padded = pad(rows, (0, 0, 0, num_missing)) if num_missing else rows
        return product(padded, self._weight, bias)[:num_rows]

    def memory(self) -> MemoryRange:
        """Return where it is."""
        return MemoryRange(torch.ops.mkldnn.data_ptr(self._weight), torch.ops.mkldnn._nbytes(self._weight))

    def array(self) -> Array:
        """Return the panels, which live as long as this."""
        assert self._panels is not None, "no row is streamed"
        return self._panels


class WidenedWeight(Weight):
    """In float32 for a CPU that has no instructions for products of half precision.

    There a product in bfloat16 takes 60 times as long as one in float32, which rounds its sums to bfloat16 all the
    same; the price is twice the memory.

    Args:
        weight: [num_outputs, num_inputs], of half precision, on a CPU; `onednn.is_sound` in float32.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self._wide = PackedWeight(weight.float())

    def product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product in float32, rounded."""
        return self._wide.product(rows.float(), None if bias is None else bias.float()).to(rows.dtype)

    def memory(self) -> MemoryRange:
        """Return where it is."""
        return self._wide.memory()


class TransposedWeight(Weight):
    """Transposed, in strips of inputs.

    Args:
        weight: [num_outputs, num_inputs], float32 or bfloat16, on a CPU. bfloat16 is widened for each product of many
            rows: 30 of the 1400 ms of 512 rows of SmolLM-135M, where reading half the bytes makes few rows faster.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        num_outputs, num_inputs = weight.shape
        self._strips = transposed(weight)
        self._weight = self._strips[:num_inputs, :num_outputs]
        if is_one_thread() and can_stream_transposed(weight.dtype):
            self.max_streamed_rows = _MAX_STRIP_ROWS

    def product(self, rows: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return the product by torch, in float32."""
        wide, weight = rows.float(), self._weight.float()
        result = wide @ weight if bias is None else torch.addmm(bias.float(), wide, weight)
        return result.to(rows.dtype)

    def memory(self) -> MemoryRange:
        """Return where it is."""
        return memory_of(self._strips)

    def array(self) -> Array:
        """Return the strips."""
        return array_of(self._strips)


class Layout(NamedTuple):
    """How weights are held, and why."""

    form: Callable[[torch.Tensor], Weight]
    """Makes one of [num_outputs, num_inputs]."""
    cause: str
    """In words."""


def laid_out(weight: torch.Tensor) -> Weight:
    """Return a weight [num_outputs, num_inputs] in the layout that is multiplied by soonest."""
    return layout_for(weight.dtype, weight.device).form(weight)


def layout_for(dtype: torch.dtype, device: torch.device) -> Layout:
    """Return the layout of weights that is multiplied by soonest."""
    if device.type != "cpu":
        return Layout(PlainWeight, "as loaded: packing is for CPUs")
    if not is_sound(torch.float32):
        return Layout(PlainWeight, "as loaded: oneDNN failed its check")
    is_candidate = dtype is torch.float32 or (dtype is torch.bfloat16 and not is_sound(dtype))
    if is_candidate and is_one_thread() and is_transposed_faster() and can_stream_transposed(dtype):
        return Layout(TransposedWeight, "transposed: torch multiplies prompts sooner than oneDNN")
    if is_sound(dtype):
        return Layout(PackedWeight, "packed: oneDNN passed its check")
    return Layout(WidenedWeight, f"packed, in float32: this CPU multiplies {str(dtype).rpartition('.')[2]} slowly")


@cache
def is_transposed_faster() -> bool:
    """Return whether one thread multiplies prompts sooner by transposed weights than by packed ones, found by trying.

    With more threads oneDNN is ahead at few rows, which have no kernel of Baton's then.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_TRIAL_ROWS, _TRIAL_SIZE, generator=generator)
    weight = torch.randn(_TRIAL_SIZE, _TRIAL_SIZE, generator=generator)
    packed, turned = PackedWeight(weight), TransposedWeight(weight)
    found = gain(
        lambda: turned.product(rows, None),
        lambda: packed.product(rows, None),
        num_rounds=_TRIAL_ROUNDS,
        clock=time.thread_time,
    )
    is_faster = found >= _MIN_GAIN
    log.info("weights_laid_out layout=%s gain=%.2f", "transposed" if is_faster else "packed", found)
    return is_faster


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
