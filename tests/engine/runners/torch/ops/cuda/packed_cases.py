"""What products by packed weights differ by from float64 arithmetic on the weights as their format defines them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch

from baton.engine.checkpoint.quantization import E4M3, Affine, Micro
from baton.engine.runners.torch.ops.cuda.packed_linear import (
    MAX_ROWS,
    QuantLinear,
    embedded,
    expanded,
    multiply,
    tiling_for,
)
from baton.engine.runners.torch.ops.cuda.packed_weight import Format, PackedWeight, lay_out, pair

KINDS = (
    Format(4, 64, "affine", "bf16"),
    Format(4, 32, "affine", "f16"),
    Format(4, 128, "affine", "bf16"),
    Format(8, 64, "affine", "bf16"),
    Format(8, 128, "affine", "f16"),
    Format(2, 32, "affine", "bf16"),
    Format(3, 64, "affine", "bf16"),
    Format(5, 32, "affine", "bf16"),
    Format(6, 128, "affine", "f16"),
    Format(8, 128, "e4m3", "f32"),
    Format(4, 32, "e2m1", "e8m0"),
    Format(8, 32, "e4m3", "e8m0"),
    Format(4, 16, "e2m1", "e4m3"),
)


def random_weight(kind: Format, num_outputs: int, num_inputs: int, seed: int) -> tuple[PackedWeight, torch.Tensor]:
    """Return a weight as kernels take it, and what `checkpoint.quantization` makes of the same bytes, in float32."""
    draw = np.random.default_rng(seed)
    stored = draw.integers(0, 256, (num_outputs, num_inputs * kind.bits // 8), dtype=np.uint8)
    groups = (num_outputs, -(-num_inputs // kind.group_size))
    words = np.ascontiguousarray(stored).view(np.uint32)
    if kind.codes == "affine":
        dtype = torch.bfloat16 if kind.scales == "bf16" else torch.float16
        scales, biases = (torch.from_numpy(draw.normal(0, 0.1, groups)).to(dtype) for _ in range(2))
        told = pair(scales, biases)
        numbers = Affine(kind.group_size, kind.bits).unpack(words, scales.float().numpy(), biases.float().numpy())
    elif kind.scales == "f32":
        stored &= 0xBF  # no NaN
        factors = draw.normal(0, 0.1, groups).astype(np.float32)
        told = torch.from_numpy(factors).view(torch.int32)
        numbers = E4M3[stored] * np.repeat(factors, kind.group_size, 1)[:, :num_inputs]
    else:
        stored &= 0xBF if kind.bits == 8 else 0xFF
        low, high = (110, 130) if kind.scales == "e8m0" else (0, 120)
        exponents = draw.integers(low, high, groups, dtype=np.uint8)
        told = torch.from_numpy(exponents)
        mode = "nvfp4" if kind.scales == "e4m3" else f"mxfp{kind.bits}"
        numbers = Micro(mode).unpack(np.ascontiguousarray(stored).view(np.uint32), exponents)
    return lay_out(torch.from_numpy(stored), told, kind), torch.from_numpy(numbers)


def packed_errors(
    seed: int,
    dtype: torch.dtype,
    *,
    kinds: Sequence[Format] = KINDS,
    device: str = "cpu",
    sizes: tuple[tuple[int, int], ...] = ((40, 384),),
    all_rows: tuple[int, ...] = (1,),
) -> dict[str, float]:
    """Return the largest error of each product as a share of the largest exact value; of weights, how many differ.

    Args:
        seed: Of the inputs.
        dtype: Of rows, and what weights are rounded to.
        kinds: Formats as files have them.
        device: Where to.
        sizes: Outputs and inputs.
        all_rows: Rows of the products; those of so many that the weight is written out come besides.
    """
    errors = {}
    for kind, (num_outputs, num_inputs) in itertools.product(kinds, sizes):
        held, numbers = random_weight(kind, num_outputs, num_inputs, seed)
        weight = held._replace(words=held.words.to(device), scales=held.scales.to(device))
        rounded = numbers.to(device).to(dtype)
        name = f"{'-'.join(map(str, kind))}, {num_outputs} x {num_inputs}, {dtype}"
        torch.manual_seed(seed)
        tokens = torch.randint(0, num_outputs, (5,)).to(device)
        bias = torch.randn(num_outputs).to(dtype).to(device)
        linear = QuantLinear(weight, bias, dtype)
        num_other = (expanded(weight, 3, num_outputs, dtype) != rounded[3:]).sum()
        num_other += (embedded(tokens, weight, dtype) != rounded[tokens]).sum()
        errors[f"{name}, weights"] = float(num_other)
        arrivals = torch.zeros(4096, dtype=torch.int32, device=device)
        for num_rows in (*all_rows, MAX_ROWS[dtype] + 1):
            rows = torch.randn(num_rows, num_inputs).to(dtype).to(device)
            results, used = {"": linear(rows)}, rounded
            if num_rows <= MAX_ROWS[dtype]:
                tiling = tiling_for(num_rows, weight, dtype, 132)._replace(splits=3)
                results[", split"] = multiply(rows, weight, bias, arrivals, tiling)
                used = numbers.to(device) if tiling.by_codes else rounded
            exact = rows.double() @ used.double().T + bias.double()
            for told, result in results.items():
                errors[f"{name}, {num_rows} rows{told}"] = _largest(result.double() - exact) / _largest(exact)
        assert not arrivals.any(), f"{name}: a product leaves arrivals behind"
    return errors


def _largest(values: torch.Tensor) -> float:
    largest = float(values.abs().max())
    return largest if math.isfinite(largest) else math.inf
