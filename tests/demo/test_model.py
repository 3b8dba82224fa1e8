"""The training attention computes what the library's attention computes."""

import pytest
import torch

from baton.demo.model import causal_blocks, new_model


@pytest.mark.parametrize("length", [1, 128, 256, 300, 512])
def test_blocked_attention_equals_the_library_kernel(length: int) -> None:
    """Lengths below, at, between and above whole blocks agree with scaled_dot_product_attention."""
    torch.manual_seed(1)
    query, key, value = torch.randn(2, 4, length, 8), torch.randn(2, 2, length, 8), torch.randn(2, 2, length, 8)

    output, _ = causal_blocks(torch.nn.Identity(), query, key, value, None, 8**-0.5)

    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(output, expected.transpose(1, 2))


def test_the_model_fits_the_package() -> None:
    """In bfloat16 the weights stay below 5 MB, and there are layers to stream and groups to share."""
    model = new_model()

    assert 2 * model.num_parameters() < 5_000_000
    assert model.config.num_hidden_layers >= 4
    assert model.config.num_key_value_heads < model.config.num_attention_heads
