"""Weights in 8 and 4 bits: right to the rounding of the weights, told apart from the checkpoint, refused elsewhere."""

from __future__ import annotations

import random

import pytest
import torch

from baton.engine.runners.base import Span
from baton.engine.runners.torch import load_torch_runner
from baton.engine.runners.torch.loader import LoadOptions
from baton.engine.runners.torch.ops.choose import choose_ops
from baton.engine.runners.torch.ops.eager.linear import Projection
from baton.engine.runners.torch.ops.eager.quantised import WeightDtype
from baton.engine.runners.torch.tensor_parallel.runner import load_parallel_runner
from baton.errors import ConfigurationError
from checkpoints import VOCABULARY_SIZE, checkpoint

PROMPT = random.Random(2).choices(range(3, VOCABULARY_SIZE), k=80)


def projection(modules: list[torch.nn.Linear], weight_dtype: WeightDtype) -> Projection:
    """Return projections as a CPU holds them."""
    return choose_ops(torch.device("cpu"), modules[0].weight.dtype).projection(modules, weight_dtype)


def modules(num_inputs: int = 96, *, dtype: torch.dtype = torch.float32) -> list[torch.nn.Linear]:
    """Return two projections of one input, the first with a bias."""
    torch.manual_seed(4)
    pair = [torch.nn.Linear(num_inputs, 64), torch.nn.Linear(num_inputs, 32, bias=False)]
    return [module.to(dtype).requires_grad_(False) for module in pair]


@pytest.mark.parametrize(("weight_dtype", "max_error"), [("auto", 1e-6), ("int8", 0.01), ("int4", 0.12)])
@pytest.mark.parametrize("num_rows", [1, 7, 40])
def test_products_differ_by_the_rounding_of_weights(weight_dtype: WeightDtype, max_error: float, num_rows: int) -> None:
    """In float32: measured 0.6 % of the result's norm for 8 bits and 8 % for 4; biases are whole."""
    pair, rows = modules(), torch.randn(num_rows, 96)
    expected = torch.cat([module(rows) for module in pair], dim=1).double()

    result = projection(pair, weight_dtype)(rows).double()

    assert float((result - expected).norm() / expected.norm()) < max_error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("weight_dtype", "max_error"), [("int8", 0.02), ("int4", 0.12)])
def test_products_hold_in_half_precision(weight_dtype: WeightDtype, max_error: float, dtype: torch.dtype) -> None:
    """Activations and scales are then rounded too."""
    pair, rows = modules(dtype=dtype), torch.randn(9, 96).to(dtype)
    expected = torch.cat([module.float()(rows.float()) for module in modules(dtype=dtype)], dim=1)

    result = projection(pair, weight_dtype)(rows)

    assert result.dtype == dtype
    assert float((result.float() - expected).norm() / expected.norm()) < max_error


@pytest.mark.parametrize(("weight_dtype", "max_error", "bits"), [("int8", 0.2, 8), ("int4", 1.0, 4)])
def test_a_whole_model_stays_near_and_is_another_model(weight_dtype: WeightDtype, max_error: float, bits: int) -> None:
    """Logits move (0.12 of their norm in 8 bits: sharpened weights magnify it); revision and bytes are another's."""
    runners = [
        load_torch_runner(checkpoint("llama"), model_id="m", num_blocks=16, weight_dtype=each)
        for each in ("auto", weight_dtype)
    ]
    exact, rounded = (runner.forward([Span(PROMPT, 0, range(5), True, 0)]).rows() for runner in runners)
    error = float(((exact - rounded) ** 2).sum() ** 0.5 / (exact**2).sum() ** 0.5)
    infos = [runner.info for runner in runners]

    assert 0 < error < max_error
    assert infos[0].layout.model_revision_digest != infos[1].layout.model_revision_digest
    assert len(infos[1].layout.model_revision_digest) == 32
    assert infos[0].weight_bytes - infos[1].weight_bytes == infos[0].num_linear_parameters * (32 - bits) // 8


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama", {"weight_dtype": "fp8"}, "weight_dtype fp8: there are kernels on CUDA only"),
        ("llama", {"weight_dtype": "int8", "model_code": "transformers"}, "weight_dtype int8: LlamaForCausalLM"),
        ("gemma2", {"weight_dtype": "int8"}, "weight_dtype int8: Gemma2ForCausalLM"),
    ],
)
def test_what_has_no_kernel_is_refused(name: str, options: dict[str, str], message: str) -> None:
    """By the option's name."""
    with pytest.raises(ConfigurationError, match=message):
        load_torch_runner(checkpoint(name), model_id="m", num_blocks=4, **options)


def test_sizes_that_fit_no_group_are_refused() -> None:
    """Groups have 32 inputs at least."""
    with pytest.raises(ConfigurationError, match="weight_dtype int4: 40 inputs"):
        projection(modules(40), "int4")


def test_shares_are_not_rounded() -> None:
    """Ranks would round differently from one device."""
    options = LoadOptions(checkpoint("llama"), "m", 4, weight_dtype="int8")

    with pytest.raises(ConfigurationError, match="weight_dtype int8: not together with tensor_parallel 2"):
        load_parallel_runner(options, 2)
