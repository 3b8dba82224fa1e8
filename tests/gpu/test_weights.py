"""Packed folders give the tokens of the weights unpacked; rounded projections, the products of what they hold."""

from __future__ import annotations

import pytest
import torch

from baton.engine.runners.base import Span
from baton.engine.runners.torch.cuda_graph.runner import CudaGraphRunner
from baton.engine.runners.torch.ops.choose import choose_ops
from baton.engine.runners.torch.ops.eager.quantised import WeightDtype
from checkpoints import CheckpointName, checkpoint
from exactness.handover import generate, greedy, start_engine
from gpu.device import DEVICE, IS_CUDA, LLAMA_LIKE, device_runner, prompt_of
from gpu.equality import check_tokens
from gpu.packing import folders

FORMATS: tuple[tuple[CheckpointName, str], ...] = (
    *(("wide_llama", kind) for kind in ("fp8", "fp8_tensor", "compressed-tensors", "awq", "gptq", "mlx4", "mlx8")),
    ("wide_qwen3", "fp8"),
    ("wide_qwen3", "mlx4"),
    ("gpt_oss", "mxfp4"),
)
ROUNDED: tuple[tuple[WeightDtype, torch.dtype, float], ...] = (
    ("int8", torch.bfloat16, 0.02),
    ("int4", torch.bfloat16, 0.02),
    ("fp8", torch.bfloat16, 0.05),
)
"""What weights are held in, activations, and how far a product may be from that of the weights as held."""


def needs_cuda(weight_dtype: WeightDtype) -> None:
    """Skip what torch multiplies on CUDA alone."""
    if weight_dtype == "fp8" and not IS_CUDA:
        pytest.skip("torch multiplies fp8 on CUDA only")


@pytest.mark.parametrize(("name", "kind"), FORMATS, ids=[f"{name}-{kind}" for name, kind in FORMATS])
def test_packed_weights_give_the_tokens_of_the_same_unpacked(name: CheckpointName, kind: str) -> None:
    """Captured where it can be, ragged prompts together, and again over what is cached."""
    packed, unpacked = folders(name, kind)
    runner = device_runner(packed, has_graphs=True if name in LLAMA_LIKE else None)
    engine = start_engine(runner, max_step_tokens=128)
    try:
        for turn in range(2):
            lengths = (1, 17, 200)
            running = [generate(engine, f"{turn}-{length}", prompt_of(length), greedy(40)) for length in lengths]
            for length, generation in zip(lengths, running, strict=True):
                check_tokens(unpacked, prompt_of(length), generation.tokens())
    finally:
        engine.close()


@pytest.mark.parametrize(("weight_dtype", "dtype", "max_error"), ROUNDED, ids=str)
@pytest.mark.parametrize("sizes", [(96, 64), (256, 384), (1024, 3072)], ids=str)
def test_rounded_products(
    weight_dtype: WeightDtype, dtype: torch.dtype, max_error: float, sizes: tuple[int, int]
) -> None:
    """Few rows and many; what is held, which rows of a unit matrix show, is near the weights."""
    needs_cuda(weight_dtype)
    torch.manual_seed(4)
    num_inputs, num_outputs = sizes
    pair = [torch.nn.Linear(num_inputs, num_outputs), torch.nn.Linear(num_inputs, 32, bias=False)]
    pair = [module.to(DEVICE, dtype).requires_grad_(False) for module in pair]
    weight = torch.cat([module.weight for module in pair]).double()
    bias = torch.cat([pair[0].bias, pair[0].bias.new_zeros(32)]).double()
    product = choose_ops(DEVICE, dtype).projection(pair, weight_dtype)
    with torch.inference_mode():
        held = (product(torch.eye(num_inputs, dtype=dtype, device=DEVICE)).double() - bias).T
        assert float((held - weight).norm() / weight.norm()) < 0.12
        for num_rows in (1, 2, 7, 40, 300):
            rows = torch.randn(num_rows, num_inputs, device=DEVICE).to(dtype)
            expected = rows.double() @ held.T + bias
            error = float((product(rows).double() - expected).norm() / expected.norm())
            assert error < max_error, f"{num_rows} rows"


@pytest.mark.parametrize(("weight_dtype", "dtype", "max_error"), ROUNDED, ids=str)
def test_a_rounded_model_decodes_by_graphs(weight_dtype: WeightDtype, dtype: torch.dtype, max_error: float) -> None:
    """Captured steps give the logits of packed passes, and stay near those of the weights as they were."""
    needs_cuda(weight_dtype)
    options = {"dtype": str(dtype)[6:], "num_blocks": 32, "has_graphs": True}
    exact, rounded = (
        device_runner(checkpoint("wide_llama"), weight_dtype=each, **options)  # type: ignore[arg-type]
        for each in ("auto", weight_dtype)
    )
    assert isinstance(rounded, CudaGraphRunner)
    prompt = prompt_of(80)
    logits = [runner.forward([Span(prompt, 0, range(6), True, 0)]).rows() for runner in (exact, rounded)]
    step = [Span([7], 80, range(6), needs_logits=True)]
    packed = rounded.forward(step).rows()
    captured = rounded.launch(step).logits().rows()

    assert ((captured - packed) ** 2).sum() ** 0.5 < 0.15 * (packed**2).sum() ** 0.5  # bfloat16, sharpened weights
    assert ((logits[0] - logits[1]) ** 2).sum() ** 0.5 < (logits[0] ** 2).sum() ** 0.5
    for runner in (exact, rounded):
        runner.close()
