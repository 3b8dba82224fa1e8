"""The training forward computes what transformers' model computes, and trains it."""

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from demo.model import CONFIG, EMBEDDING, MATRICES, VECTORS, Weights, forward, views
from demo.vocabulary import NUM_TOKENS, PAD_ID


def sharp_weights() -> Weights:
    """Return random weights of which none is 0."""
    torch.manual_seed(0)
    weights = Weights.new("cpu")
    for name, part in weights.named().items():
        if name in MATRICES:
            part.normal_(std=0.07)
        elif "norm" in name:
            part.add_(torch.randn_like(part) * 0.1)
    return weights


@pytest.mark.parametrize("shape", [(3, 64), (1, 320)])
def test_logits_and_gradients_are_those_of_transformers(shape: tuple[int, int]) -> None:
    """Within float32's rounding, with repeated tokens and a jump of positions; padding's row learns nothing there."""
    weights = sharp_weights()
    theirs = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**CONFIG)).float().eval()
    theirs.load_state_dict(weights.named(), strict=False)
    tokens = torch.randint(0, NUM_TOKENS, shape)
    tokens[0, 20:60] = PAD_ID
    positions = torch.arange(shape[1]).expand(shape).clone()
    positions[0, 50:] += 100
    weights.matrices.requires_grad_(True)
    weights.vectors.requires_grad_(True)
    ours = forward(weights, tokens, positions, torch.float32)
    expected = theirs(tokens, position_ids=positions, attention_mask=torch.ones_like(tokens), use_cache=False).logits
    probe = torch.randn_like(ours)
    (ours * probe).sum().backward()
    (expected.flatten(0, 1) * probe).sum().backward()

    torch.testing.assert_close(ours, expected.flatten(0, 1), atol=1e-4, rtol=0)
    assert weights.matrices.grad is not None
    assert weights.vectors.grad is not None
    gradients = views(weights.matrices.grad, MATRICES) | views(weights.vectors.grad, VECTORS)
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None
        rows = slice(PAD_ID + 1, None) if name == EMBEDDING else slice(None)
        worst = float((gradients[name][rows] - parameter.grad[rows]).abs().max() / parameter.grad.abs().max())
        assert worst < 1e-3, name
