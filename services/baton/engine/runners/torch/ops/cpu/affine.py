"""Weights that stay in few bits in memory: few rows are multiplied by them as they are, many by a part at a time.

On one core of an EPYC 9005 (AVX-512) a product of one row takes 2.7 ms for the 135 M weights of SmolLM-135M in 4 bits
and 3.9 in 8, where reading them in bfloat16 takes 7; unpacking them takes 11, of the 500 that 512 rows take.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import torch

from baton.engine.checkpoint.quantization import Affine
from baton.engine.checkpoint.weights import PackedRows, Weight
from baton.engine.runners.torch.ops.cpu.linear import CpuLinear, pack, padded_rows, panels_of, product
from baton.engine.runners.torch.ops.cpu.numba_kernels import AFFINE_OUTPUTS, PANEL_OUTPUTS
from baton.engine.runners.torch.ops.device import MemoryRange
from baton.engine.runners.torch.ops.eager.quantised import RoundedWeight
from baton.engine.runners.torch.ops.pool import Array

MAX_ROWS = 16
"""Rows up to which packed weights are multiplied as they are: at 16 rows sooner than by unpacking first."""
_PART_BYTES = 4 << 20
"""Weights that are unpacked at a time, in their size unpacked: they stay in a cache until they are multiplied."""
_BITS = (4, 8)
_SCALES = ("BF16", "F16")


def can_hold(packed: PackedRows) -> bool:
    """Return whether a weight can stay as it is packed."""
    scales, biases = packed.scales.dtype, packed.biases and packed.biases.dtype
    return isinstance(packed.kind, Affine) and packed.kind.bits in _BITS and scales == biases and scales in _SCALES


def blocks_of(words: Array, scales: Array, biases: Array, *, bits: int, is_half: bool) -> Array:
    """Return a packed weight as `numba_kernels.affine` takes it.

    `words`: [num_outputs, num_inputs * bits / 32], uint32. `scales`: [num_outputs, num_groups], in elements of 16 bits.
    `biases`: likewise. `bits`: of a code, 4 or 8. `is_half`: whether scales and biases are float16; else bfloat16.
    """
    num_outputs, num_groups = scales.shape
    num_blocks = -(-num_outputs // AFFINE_OUTPUTS)
    group_words = words.shape[1] // num_groups
    blocks = np.zeros((num_blocks, num_groups, 1 + group_words, AFFINE_OUTPUTS), np.uint32)
    halves = np.stack([scales.view(np.uint16), biases.view(np.uint16)], -1).view(np.uint32)[..., 0]
    for first in range(num_blocks):
        rows = slice(first * AFFINE_OUTPUTS, (first + 1) * AFFINE_OUTPUTS)
        own = halves[rows]
        blocks[first, :, 0, : len(own)] = own.T
        blocks[first, :, 1:, : len(own)] = words[rows].reshape(-1, num_groups, group_words).transpose(1, 2, 0)
    marked = blocks.view(np.int32) if is_half else blocks
    return marked if bits == _BITS[0] else marked[..., None]


def joined(sources: Sequence[Weight | RoundedWeight]) -> Array:
    """Return weights of the same inputs and kind, outputs side by side, of files or rounded: whole numbers."""
    parts, bits, is_half = [], 0, False
    for source in sources:
        if isinstance(source, RoundedWeight):
            halves = [part.view(torch.int16).numpy() for part in (source.scales, source.biases) if part is not None]
            parts.append([source.packed().numpy().view(np.uint32), *halves])
            bits = source.bits
        elif (packed := source.packed) is not None:
            parts.append([part.matrix() for part in packed[:3] if part])
            bits, is_half = packed.kind.bits, packed.scales.dtype == "F16"
    words, scales, biases = (np.concatenate(same) for same in zip(*parts, strict=True))
    return blocks_of(words, scales, biases, bits=bits, is_half=is_half)


class AffineLinear(CpuLinear):
    """A product by weights in 4 or 8 bits; rows are float32 or bfloat16.

    `like`: of the dtype and the sizes of the weight, [num_outputs, num_inputs]; its elements are not looked at. `bias`:
    [num_outputs]. `blocks`: the weight, as `blocks_of` and `joined` return it. `num_threads`: threads that multiply.
    `product_dtype`: of the parts that oneDNN multiplies by; on a CPU without products of bfloat16 it is float32.
    """

    def __init__(
        self, like: torch.Tensor, bias: torch.Tensor | None, blocks: Array, num_threads: int, product_dtype: torch.dtype
    ) -> None:
        from baton.engine.runners.torch.ops.cpu.numba_kernels.affine import unpack_affine
        from baton.engine.runners.torch.ops.cpu.numba_kernels.team import team_of

        self._blocks, self._unpack = blocks, partial(unpack_affine, team_of(num_threads))
        self._num_inputs, self._product_dtype = like.shape[1], product_dtype
        super().__init__(like, bias, max_streamed_rows=MAX_ROWS, num_threads=num_threads)

    def _lay_out(self, weight: torch.Tensor, *, is_streamed: bool) -> Array:  # noqa: ARG002
        return self._blocks

    def product(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product of many rows, by oneDNN, part by part of the weight."""
        padded, row_bytes = padded_rows(rows.to(self._product_dtype)), self._num_inputs * self._product_dtype.itemsize
        step = max(1, _PART_BYTES // row_bytes // PANEL_OUTPUTS) * PANEL_OUTPUTS
        parts = []
        for begin in range(0, self.num_outputs, step):
            end = min(begin + step, self.num_outputs)
            bias = None if self._bias is None else self._bias[begin:end].to(self._product_dtype)
            blocks = self._blocks[begin // AFFINE_OUTPUTS : -(-end // AFFINE_OUTPUTS)]
            weight = self._unpacked(blocks, end - begin)
            parts.append(product(padded, weight, bias))
        whole = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        return whole[: len(rows)].to(rows.dtype)

    def _unpacked(self, blocks: Array, num_outputs: int) -> torch.Tensor:
        """Return a weight of blocks as oneDNN multiplies it; valid until one of these sizes is asked for again."""
        packed, panels = _part(num_outputs, self._num_inputs, self._product_dtype)
        if panels is not None:
            self._unpack(blocks, panels)
            return packed
        wide = np.empty((-(-num_outputs // PANEL_OUTPUTS), self._num_inputs, PANEL_OUTPUTS), np.float32)
        self._unpack(blocks, wide)
        weight = torch.from_numpy(wide).transpose(1, 2).reshape(-1, self._num_inputs)[:num_outputs]
        return weight.to(self._product_dtype)

    def memory(self) -> MemoryRange:
        """Return where the weight is."""
        return MemoryRange(self._blocks.ctypes.data, self._blocks.nbytes)


class PackedEmbedding:
    """Rows of an embedding that stays packed in its file, unpacked as tokens ask for them to the dtype of rows."""

    def __init__(self, weight: Weight, dtype: torch.dtype) -> None:
        self._weight, self._dtype = weight, dtype

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return [num_tokens, hidden_size]."""
        return torch.from_numpy(self._weight.read(token_ids.numpy())).to(self._dtype)


@cache
def _part(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, Array | None]:
    """Return memory in oneDNN's layout for weights of some sizes, and its panels, if it consists of such."""
    known = torch.arange(num_outputs * num_inputs, dtype=torch.float32).remainder(251).view(num_outputs, num_inputs)
    packed = pack(known.to(dtype))
    return packed, panels_of(packed, known.to(dtype))
