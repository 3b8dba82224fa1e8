"""Products of any number of rows need few kernels, and are right."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.runners.torch.ops.choose import choose_ops
from baton.engine.runners.torch.ops.cpu import checks
from baton.engine.runners.torch.ops.cpu.checks import can_multiply, can_stream_transposed
from baton.engine.runners.torch.ops.cpu.linear import CpuLinear, padded_rows
from baton.engine.runners.torch.ops.eager.linear import Linear


def linear_of(*modules: torch.nn.Linear) -> Linear:
    """Return projections as a CPU holds them."""
    return choose_ops(torch.device("cpu"), modules[0].weight.dtype).linear(modules)


@given(num_rows=st.integers(1, 100_000))
def test_padding_is_a_quarter_at_most(num_rows: int) -> None:
    """Of zeros, no more rows than a quarter beyond those wanted; a padded number is not padded again."""
    rows = torch.ones(num_rows, 1)
    padded = padded_rows(rows)

    assert num_rows <= len(padded) <= 1.25 * num_rows
    assert torch.equal(padded[:num_rows], rows)
    assert not padded[num_rows:].any()
    assert padded_rows(padded) is padded


def test_batches_and_prompts_of_a_pass_have_few_sizes() -> None:
    """Passes of up to 512 positions come in 36 sizes."""
    assert len({len(padded_rows(torch.empty(num_rows, 0))) for num_rows in range(1, 513)}) == 36


@settings(max_examples=40, deadline=None)
@given(num_rows=st.integers(1, 150), has_bias=st.booleans(), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_product_equals_torchs(num_rows: int, has_bias: bool, dtype: torch.dtype) -> None:
    """Two projections side by side, one of them with a bias."""
    torch.manual_seed(num_rows)
    first, second = (
        torch.nn.Linear(48, 32, bias=has_bias, dtype=dtype),
        torch.nn.Linear(48, 16, bias=False, dtype=dtype),
    )
    rows = torch.randn(num_rows, 48, dtype=dtype)

    with torch.inference_mode():
        product = linear_of(first, second)(rows)

        expected = torch.cat([first(rows), second(rows)], dim=1)
    torch.testing.assert_close(product, expected, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cpu_without_instructions_for_it_multiplies_half_precision_in_float32(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes out is of the rows' format, and no further from the truth than one rounding."""
    monkeypatch.setattr(checks, "is_sound", lambda asked: asked is torch.float32)
    monkeypatch.setattr(checks, "is_transposed_faster", lambda: False)
    torch.manual_seed(0)
    module = torch.nn.Linear(48, 32, dtype=dtype)
    rows = torch.randn(7, 48, dtype=dtype)

    with torch.inference_mode():
        product = linear_of(module)(rows)

        expected = torch.nn.functional.linear(rows.double(), module.weight.double(), module.bias.double())
    assert product.dtype is dtype
    torch.testing.assert_close(product.double(), expected, atol=0, rtol=torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("dtype", "is_transposed"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)]
)
def test_each_layout_of_weights_multiplies_batches_and_prompts(
    dtype: torch.dtype, is_transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows by Baton's kernel, more by a library; sizes that fill neither panels nor strips."""
    if not checks.is_sound(torch.float32):
        pytest.skip("oneDNN is off here")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(checks, "is_transposed_faster", lambda: is_transposed)
    monkeypatch.setattr(checks, "is_sound", lambda asked: asked is torch.float32)
    torch.manual_seed(0)
    module = torch.nn.Linear(50, 70, dtype=dtype)

    with torch.inference_mode():
        product = linear_of(module)

        for num_rows in (1, 2, 5, 32, 33, 100):
            rows = torch.randn(num_rows, 50, dtype=dtype)
            expected = torch.nn.functional.linear(rows.double(), module.weight.double(), module.bias.double())
            torch.testing.assert_close(
                product(rows).double(), expected, atol=1e-5, rtol=max(1e-4, torch.finfo(dtype).eps)
            )
    num_rows = 32 * can_stream_transposed(dtype) if is_transposed else 8 * can_multiply(dtype)
    assert isinstance(product, CpuLinear)
    assert product.num_streamed_rows == num_rows
    assert 1 <= product.memory().num_bytes / module.weight.nbytes < 3, "more than sizes rounded up"
