"""Products of any number of rows need few kernels, and are right."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.runners.torch.fused.linear import Linear, padded_rows


@given(num_rows=st.integers(1, 100_000))
def test_padding_is_a_quarter_at_most(num_rows: int) -> None:
    """No more rows than a quarter beyond those wanted, and never fewer; a padded number is not padded again."""
    padded = padded_rows(num_rows)

    assert num_rows <= padded <= 1.25 * num_rows
    assert padded_rows(padded) == padded


def test_batches_and_prompts_of_a_pass_have_few_sizes() -> None:
    """Passes of up to 512 positions come in 36 sizes."""
    assert len({padded_rows(num_rows) for num_rows in range(1, 513)}) == 36


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
        product = Linear([first, second])(rows)

        expected = torch.cat([first(rows), second(rows)], dim=1)
    torch.testing.assert_close(product, expected, atol=1e-5 if dtype == torch.float32 else 0.02, rtol=0.02)
