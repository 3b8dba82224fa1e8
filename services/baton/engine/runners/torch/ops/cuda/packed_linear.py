"""Products by weights that stay in few bits, and rows of embeddings; on a CPU only under TRITON_INTERPRET=1.

Few rows are multiplied by the weight as it lies; for many it is written out in their dtype, part by part, into memory
that the next product uses again, and multiplied by torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch.nn.functional import linear

from baton.engine.runners.torch.ops.cuda.packed_weight import PackedWeight
from baton.engine.runners.torch.ops.cuda.paged_attention import num_multiprocessors
from baton.engine.runners.torch.ops.device import MemoryRange, memory_of
from baton.engine.runners.torch.ops.eager.linear import Linear

MAX_ROWS = {torch.bfloat16: 64, torch.float16: 64, torch.float32: 32}
"""Rows up to which a weight is multiplied by as it lies, by their dtype."""
_PART_BYTES = 1 << 28
"""Of a weight that is written out at a time: all of a layer's in bfloat16 but for the largest."""
_SMALLEST_TILE = 8
_MAX_SPLITS = 8
_MAX_TILE_OUTPUTS = 128
_TILE_OUTPUTS = 64
"""Of outputs that are written out at a time."""


_MARKS = {torch.bfloat16: (128.0, 0x43004300), torch.float16: (1024.0, 0x64006400)}
"""Of rows' dtypes: a number whose last bits are a whole number's, and its bits twice."""


class Tiling(NamedTuple):
    """Sizes that the product is compiled for."""

    outputs: int
    """Outputs of a tile, a power of 2."""
    rows: int
    """Rows of a tile, a power of 2 and 8 or more, as tensor cores multiply."""
    splits: int
    """Parts of the inputs, multiplied apart and added up in order."""
    num_warps: int
    num_stages: int
    """Blocks of inputs that are fetched ahead, and the one at hand."""
    by_codes: bool = False
    """Whether whole numbers are multiplied as they are; rows are of 16 bits."""


def tiling_for(num_rows: int, weight: PackedWeight, dtype: torch.dtype, num_multiprocessors: int) -> Tiling:
    """Return the tiling of a product of 1 to `MAX_ROWS` rows."""
    rows = max(_SMALLEST_TILE, 1 << (num_rows - 1).bit_length())
    by_codes = dtype in _MARKS and rows <= 16 and weight.kind.codes == "affine" and weight.kind.bits <= 4
    if dtype is torch.float32:  # no tensor core multiplies it exactly
        outputs, num_warps = 32, 4
    else:
        outputs, num_warps = (64, 2) if rows <= 32 else (128, 8)  # measured on an H200: bench/results/gpu.json
    wanted = 4 * num_multiprocessors // -(-weight.num_outputs // outputs)
    splits = max(1, min(wanted, len(weight.words) // 4, _MAX_SPLITS))
    if 8 < rows <= 32 and dtype is not torch.float32:
        outputs, num_warps = (64, 4) if splits > 1 else (64, 2) if rows == 16 else (128, 4)
    return Tiling(outputs, rows, splits, num_warps, 3, by_codes)


class QuantLinear(Linear):
    """A product by a weight in few bits; rows are of `dtype`. `bias`: [num_outputs]."""

    def __init__(self, weight: PackedWeight, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self.dtype, self.num_outputs = dtype, weight.num_outputs
        self._weight, self._bias = weight, bias
        num_tiles = -(-self.num_outputs // _SMALLEST_TILE) * (MAX_ROWS[dtype] // _SMALLEST_TILE)
        self._arrivals = torch.zeros(num_tiles, dtype=torch.int32, device=weight.words.device)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        rows = rows.contiguous()
        if len(rows) <= MAX_ROWS[rows.dtype]:
            device = rows.device
            tiling = tiling_for(len(rows), self._weight, rows.dtype, num_multiprocessors(device))
            return multiply(rows, self._weight, self._bias, self._arrivals, tiling)
        step = max(1, _PART_BYTES // (self.dtype.itemsize * self._weight.num_inputs))
        parts = []
        for first in range(0, self.num_outputs, step):
            end = min(self.num_outputs, first + step)
            bias = None if self._bias is None else self._bias[first:end]
            parts.append(linear(rows, expanded(self._weight, first, end, rows.dtype), bias))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def memory(self) -> MemoryRange:
        """Return where the words are."""
        return memory_of(self._weight.words)


def embedded(token_ids: torch.Tensor, weight: PackedWeight, dtype: torch.dtype) -> torch.Tensor:
    """Return rows of an embedding [num_tokens, hidden_size] in `dtype`."""
    return _numbers(weight, dtype, len(token_ids), chosen=token_ids.contiguous())


def multiply(
    rows: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, arrivals: torch.Tensor, tiling: Tiling
) -> torch.Tensor:
    """Return the product of contiguous rows [num_rows, num_inputs]: [num_rows, num_outputs].

    `arrivals`: zeros, int32, one for each tile, which are zeros afterwards; nobody else uses them meanwhile.
    """
    from baton.engine.runners.torch.ops.cuda.packed_kernel import multiply as kernel

    num_rows, num_outputs = len(rows), weight.num_outputs
    output = rows.new_empty(num_rows, num_outputs)
    if not num_rows:
        return output
    parts = output
    if tiling.splits > 1:
        parts = torch.empty(tiling.splits, num_rows, num_outputs, device=rows.device)
    _, bits = _MARKS.get(rows.dtype, (0.0, 0))
    kernel[(-(-num_outputs // tiling.outputs), tiling.splits, -(-num_rows // tiling.rows))](
        *(rows, rows, weight.words, weight.scales, _marks(rows.device, bits)),
        *(output if bias is None else bias, output, parts, arrivals),
        *(num_rows, rows.stride(0), tiling.splits, -(-len(weight.words) // tiling.splits)),
        **constants_of(weight, tiling, rows.dtype, has_bias=bias is not None),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return output


def constants_of(weight: PackedWeight, tiling: Tiling, dtype: torch.dtype, *, has_bias: bool) -> dict[str, Any]:
    """Return what a product of rows of `dtype` is compiled for."""
    return {
        **_sizes(weight),
        "NUM_BLOCKS": len(weight.words),
        "HAS_BIAS": has_bias,
        "BY_CODES": tiling.by_codes,
        "MARK": _MARKS[dtype][0] if tiling.by_codes else 0.0,
        "TILE_OUTPUTS": tiling.outputs,
        "TILE_ROWS": tiling.rows,
        "IS_SPLIT": tiling.splits > 1,
        "STAGES": tiling.num_stages,
    }


def expanded(weight: PackedWeight, first: int, end: int, dtype: torch.dtype) -> torch.Tensor:
    """Return outputs [first, end) as numbers: [end - first, num_inputs]."""
    return _numbers(weight, dtype, end - first, first=first)


def _numbers(
    weight: PackedWeight, dtype: torch.dtype, count: int, *, first: int = 0, chosen: torch.Tensor | None = None
) -> torch.Tensor:
    from baton.engine.runners.torch.ops.cuda.packed_kernel import write

    numbers = torch.empty(count, weight.num_inputs, dtype=dtype, device=weight.words.device)
    if count:
        write[(-(-count // _TILE_OUTPUTS), len(weight.words))](
            *(weight.words, weight.scales, weight.words if chosen is None else chosen, numbers, first, count),
            **_sizes(weight),
            IS_CHOSEN=chosen is not None,
            TILE_OUTPUTS=_TILE_OUTPUTS,
        )
    return numbers


@cache
def _marks(device: torch.device, bits: int) -> torch.Tensor:
    return torch.full((_MAX_TILE_OUTPUTS,), bits, dtype=torch.int32, device=device)


def _sizes(weight: PackedWeight) -> dict[str, Any]:
    told = weight.kind
    return {
        "NUM_INPUTS": weight.num_inputs,
        "NUM_OUTPUTS": weight.num_outputs,
        "WORDS": weight.words.shape[2],
        "BITS": told.bits,
        "GROUP": told.group_size,
        "CODES": told.codes,
        "SCALES": told.scales,
    }
