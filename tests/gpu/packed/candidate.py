"""Calls the candidate kernel as `packed_linear.multiply` calls the served one, with sizes that it has besides."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from baton.engine.runners.torch.ops.cuda.packed_linear import Tiling, constants_of
from baton.engine.runners.torch.ops.cuda.packed_weight import PackedWeight

_MARKS = {torch.bfloat16: (128.0, 0x43004300), torch.float16: (1024.0, 0x64006400)}


class Plan(NamedTuple):
    """A product's kernel and sizes."""

    tiling: Tiling
    blocks: int = 0
    """Blocks of inputs beside each other, each with warps of its own: a power of 2; 0: the kernel that is served."""
    is_early: bool = False
    """Whether a launch begins before the one ahead of it has ended; of the candidate alone."""


def candidate_product(
    rows: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None, arrivals: torch.Tensor, plan: Plan
) -> torch.Tensor:
    """Return [num_rows, num_outputs] of contiguous rows, as `packed_linear.multiply` does."""
    from gpu.packed.candidate_kernel import multiply as kernel

    tiling, num_steps = plan.tiling, -(-len(weight.words) // plan.blocks)
    output = rows.new_empty(len(rows), weight.num_outputs)
    parts = torch.empty(tiling.splits, *output.shape, device=rows.device) if tiling.splits > 1 else output
    launch: dict[str, Any] = {"launch_pdl": True} if plan.is_early else {}
    kernel[(-(-weight.num_outputs // tiling.outputs), tiling.splits, -(-len(rows) // tiling.rows))](
        *(rows, rows, weight.words, weight.scales, output if bias is None else bias, output, parts, arrivals),
        *(len(rows), rows.stride(0), tiling.splits, -(-num_steps // tiling.splits)),
        **_constants(weight, plan, rows.dtype, has_bias=bias is not None),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
        **launch,
    )
    return output


def _constants(weight: PackedWeight, plan: Plan, dtype: torch.dtype, *, has_bias: bool) -> dict[str, Any]:
    constants = constants_of(weight, plan.tiling, dtype, has_bias=has_bias)
    is_by_codes = constants.pop("BY_CODES")
    mark, bits = _MARKS[dtype]
    mask = ((1 << weight.kind.bits) - 1) * 0x10001
    is_compiled = weight.words.device.type == "cuda"
    return constants | {
        "MARK": mark if is_by_codes else 0.0,
        "MARK_BITS": bits,
        "JOIN": f"lop3.b32 $0, $1, {mask}, {bits}, 0xEA;" if is_compiled else "",
        "TILE_BLOCKS": plan.blocks,
        "EARLY": plan.is_early,
    }
