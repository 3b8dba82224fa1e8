"""What the kernels between products differ by from the same in float64."""

from __future__ import annotations

import torch
from torch.nn.functional import silu

from baton.engine.runners.drawing import Draws, draw_tokens
from baton.engine.runners.torch.ops.cuda.drawing import draw
from baton.engine.runners.torch.ops.cuda.elementwise import add_and_normalise, gate, rotate_and_store
from baton.engine.runners.torch.ops.device_ops import HeadNorms, Norm
from baton.engine.runners.torch.ops.pool import KeysValues

_NUM_HEADS, _NUM_KV_HEADS, _BLOCK_TOKENS = 4, 2, 4


def between_errors(seed: int, dtype: torch.dtype, *, device: str = "cpu", size: int = 80) -> dict[str, float]:
    """Return the largest error of each kernel as a share of the largest exact value.

    Args:
        seed: Of the inputs.
        dtype: Of tensors.
        device: Where to.
        size: Of a hidden row; rows of gates and heads have unlike sizes too.
    """
    torch.manual_seed(seed)
    name = str(dtype)[6:]
    errors = {}
    for head_dim in (16, 24) if device == "cpu" else (64, 96, 128, 256):
        for has_norms in (False, True):
            label = f"heads of {head_dim}, {name},{' normalised' if has_norms else ''}"
            errors[label] = max(
                _rotation_error(head_dim, dtype, torch.device(device), num_rows, has_norms=has_norms)
                for num_rows in (2, 131 if device != "cpu" or (has_norms and head_dim == 24) else 5)
            )
    gate_up = torch.randn(3, 2 * size).to(dtype).to(device)
    first, second = gate_up.double().chunk(2, dim=-1)
    errors[f"gate, {name}, {size}"] = _error(gate(gate_up), silu(first) * second)
    hidden, delta = (torch.randn(3, size).to(dtype).to(device) for _ in range(2))
    weight = (1 + 0.1 * torch.randn(size)).to(dtype).to(device)
    total, normalised = add_and_normalise(hidden, delta, weight, 1e-5)
    errors[f"sum, {name}, {size}"] = _error(total, hidden.double() + delta.double())
    errors[f"norm, {name}, {size}"] = _error(normalised, _normalised(total.double(), weight.double(), 1e-5))
    return errors


def num_drawn_otherwise(seed: int, dtype: torch.dtype, *, device: str = "cpu", size: int = 5000) -> int:
    """Return how many of 48 rows are given another token than the host draws, tokens that may not come among them."""
    torch.manual_seed(seed)
    logits = (3 * torch.randn(48, size)).to(dtype)
    logits[torch.rand(48, size) < 0.5] = -torch.inf
    logits[0], logits[1, 3], logits[2, 7] = -torch.inf, torch.nan, torch.inf
    logits[3, : size - 1] = -torch.inf
    temperatures, uniforms = torch.rand(48, dtype=torch.float64) * 2, torch.rand(48, dtype=torch.float64)
    temperatures[4:8], uniforms[8], uniforms[9] = 0.0, 0.0, 1 - 2**-53
    drawn = draw(*(each.to(device) for each in (logits, temperatures, uniforms)))
    expected = draw_tokens(logits.float().numpy(), Draws(temperatures.numpy(), uniforms.numpy()[None]))
    return int((drawn.cpu() != torch.tensor(expected)).sum())


def _rotation_error(
    head_dim: int, dtype: torch.dtype, device: torch.device, num_rows: int, *, has_norms: bool
) -> float:
    num_blocks = num_rows
    heads = torch.randn(num_rows, _NUM_HEADS + 2 * _NUM_KV_HEADS, head_dim).to(dtype).to(device)
    cosines, sines = (torch.randn(num_rows, 1, head_dim).to(dtype).to(device) for _ in range(2))
    weights = [(1 + 0.1 * torch.randn(head_dim)).to(dtype).to(device) for _ in range(2)]
    slots = torch.randperm(num_blocks * _BLOCK_TOKENS)[:num_rows].to(device)
    blocks = torch.zeros(2, _NUM_KV_HEADS, num_blocks, _BLOCK_TOKENS, head_dim, dtype=dtype, device=device)
    pool = KeysValues(blocks[0], blocks[1])
    norms = HeadNorms(*(Norm(weight, 1e-6) for weight in weights)) if has_norms else None
    queries, copies = rotate_and_store(heads, cosines, sines, norms, slots, pool, is_copied=True)
    assert copies is not None

    query, key, value = heads.double().split((_NUM_HEADS, _NUM_KV_HEADS, _NUM_KV_HEADS), dim=1)
    if has_norms:
        query, key = (
            _normalised(each, weight.double(), 1e-6) for each, weight in ((query, weights[0]), (key, weights[1]))
        )
    query, key = (each * cosines.double() + each.roll(head_dim // 2, -1) * sines.double() for each in (query, key))
    stored = [each.flatten(1, 2)[:, slots].transpose(0, 1) for each in pool]
    num_others = int(sum((each != 0).sum() for each in pool)) - 2 * num_rows * _NUM_KV_HEADS * head_dim
    errors = [_error(queries, query), _error(stored[0], key), _error(stored[1], value), float(num_others > 0)]
    errors += [_error(copy.transpose(0, 1), each) for copy, each in zip(copies, stored, strict=True)]
    return max(errors)


def _normalised(values: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return values * (values.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight


def _error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).abs().max() / exact.abs().max())
