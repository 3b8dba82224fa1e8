"""Attention in blocks of queries equals the textbook's, whatever the block, the window and the cached prefix."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.runners.torch.cpu_attention import attend_causally
from baton.engine.runners.torch.pool import KeysValues


def textbook(query: torch.Tensor, kv: KeysValues, first_query: int, scaling: float, window: int) -> torch.Tensor:
    """Attend in float64 with one mask."""
    scores = query.double() @ kv.keys.double()[:, None].transpose(-1, -2) * scaling
    queries = torch.arange(first_query, first_query + query.shape[2])[:, None]
    keys = torch.arange(kv.keys.shape[1])[None]
    is_seen = (keys <= queries) & ((keys > queries - window) if window else True)
    return scores.masked_fill(~is_seen, -torch.inf).softmax(-1) @ kv.values.double()[:, None]


@settings(max_examples=60, deadline=None)
@given(
    num_queries=st.integers(1, 300),
    first_query=st.integers(0, 700),
    window=st.sampled_from([0, 1, 7, 64, 300, 5000]),
    num_kv_heads=st.integers(1, 2),
    num_groups=st.integers(1, 4),
)
def test_equals_the_textbook(
    num_queries: int, first_query: int, window: int, num_kv_heads: int, num_groups: int
) -> None:
    """In float32, to rounding."""
    generator = torch.Generator().manual_seed(num_queries * 1009 + first_query)
    query = torch.randn(num_kv_heads, num_groups, num_queries, 16, generator=generator)
    keys = torch.randn(num_kv_heads, first_query + num_queries, 16, generator=generator)
    kv = KeysValues(keys, torch.randn(*keys.shape[:2], 24, generator=generator))

    output = attend_causally(query, kv, first_query=first_query, scaling=0.7, window_tokens=window)

    expected = textbook(query, kv, first_query, 0.7, window)
    torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_close_as_torch(dtype: torch.dtype) -> None:
    """In 16 bits the error against float64 is no larger than that of torch's own kernel, up to a quarter."""
    generator = torch.Generator().manual_seed(0)
    query, keys, values = (torch.randn(2, 1, 400, 64, generator=generator).to(dtype) for _ in range(3))
    kv = KeysValues(keys[:, 0], values[:, 0])
    expected = textbook(query, kv, 0, 0.125, 0)

    output = attend_causally(query, kv, first_query=0, scaling=0.125, window_tokens=0)

    torchs = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
    error, torch_error = (float((result.double() - expected).pow(2).mean().sqrt()) for result in (output, torchs))
    assert error <= 1.25 * torch_error
