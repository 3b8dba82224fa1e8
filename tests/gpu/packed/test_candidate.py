"""The candidate for products by packed weights computes what float64 does, before it is timed."""

from __future__ import annotations

import pytest
import torch

from baton.engine.runners.torch.ops.choose import IS_INTERPRETED
from baton.engine.runners.torch.ops.cuda.packed_linear import Tiling
from baton.engine.runners.torch.ops.cuda.packed_weight import Format
from engine.runners.torch.ops.cuda.packed_cases import KINDS, random_weight
from gpu.device import DEVICE, IS_CUDA, SEED
from gpu.packed.candidate import Plan, candidate_product

pytestmark = pytest.mark.skipif(not (IS_CUDA or IS_INTERPRETED), reason="on a CPU under TRITON_INTERPRET=1 alone")
DTYPE = torch.bfloat16 if IS_CUDA else torch.float16
"""Numpy, which interprets, knows no bfloat16."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind)))
@pytest.mark.parametrize("num_rows", [1, 8, 13])
@pytest.mark.parametrize("blocks", [1, 4, 8] if IS_CUDA else [1, 4])
@pytest.mark.parametrize("splits", [1, 2])
def test_candidate_computes_what_float64_does(kind: Format, num_rows: int, blocks: int, splits: int) -> None:
    """Whole and split, blocks that do not fill a program's, outputs that do not fill a tile; called twice alike."""
    weight, numbers = random_weight(kind, 200, 1152, SEED)
    weight = weight._replace(words=weight.words.to(DEVICE), scales=weight.scales.to(DEVICE))
    is_by_codes = kind.codes == "affine" and kind.bits <= 4
    tiling = Tiling(32, 8 if num_rows <= 8 else 16, splits, blocks, 2, is_by_codes)
    rows, bias = torch.randn(num_rows, 1152).to(DEVICE, DTYPE), torch.randn(200).to(DEVICE, DTYPE)
    arrivals = torch.zeros(64, dtype=torch.int32, device=DEVICE)
    numbers = numbers.to(DEVICE)
    used = numbers if is_by_codes else numbers.to(DTYPE)
    exact = rows.double() @ used.double().T + bias.double()

    results = [
        candidate_product(rows, weight, bias, arrivals, Plan(tiling, blocks, is_early))
        for is_early in ((False, False, True) if IS_CUDA else (False, False))
    ]

    for result in results:
        assert torch.equal(result, results[0])
        assert float((result.double() - exact).abs().max() / exact.abs().max()) < (6e-3 if IS_CUDA else 1e-3)
