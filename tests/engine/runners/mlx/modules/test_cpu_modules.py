"""What stands in for MLX's modules on a CPU computes what they compute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mlx.core")

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.rope_utils import initialize_rope

from baton.engine.runners.mlx.modules.cpu_modules import RotationTable, SharedRope, ShortRmsNorm, suit_cpu

HEAD_DIM = 32
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


class Model(nn.Module):
    """As much of a model as is walked: layers of one attention each."""

    def __init__(self, ropes: list[Any]) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8)
        layers = []
        for rope in ropes:
            layer, attention = nn.Module(), nn.Module()
            attention.rope = rope
            layer.self_attn = attention
            layers.append(layer)
        self.layers = layers

    @property
    def model(self) -> Model:
        """Return itself: mlx-lm's models hold their layers one deeper."""
        return self


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_norm_gives_the_bits_of_mlx(dtype: str) -> None:
    """The order of the operations is the same; products by 1/n stand for the quotient."""
    norm = nn.RMSNorm(48, eps=1e-6)
    norm.weight = mx.random.normal((48,), key=mx.random.key(1))
    norm.set_dtype(getattr(mx, dtype))
    hidden = (3 * mx.random.normal((2, 5, 48), key=mx.random.key(2))).astype(getattr(mx, dtype))

    computed, expected = ShortRmsNorm(norm)(hidden), norm(hidden)

    assert computed.dtype == expected.dtype
    assert mx.allclose(computed.astype(mx.float32), expected.astype(mx.float32), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scaling", [None, LLAMA3, YARN], ids=["plain", "llama3", "yarn"])
@pytest.mark.parametrize("offset", [0, 1000, [3, 70, 4000]], ids=["start", "same", "each its own"])
def test_rotation_by_a_table_equals_that_of_the_model(scaling: dict[str, Any] | None, offset: int | list[int]) -> None:
    """So it is for one position and several, for rows together and apart."""
    rope = initialize_rope(HEAD_DIM, 10_000.0, False, scaling, 16_384)
    shared = SharedRope(RotationTable(rope, HEAD_DIM))
    offsets = offset if isinstance(offset, int) else mx.array(offset)
    for num_tokens in (1, 6):
        heads = mx.random.normal((3, 4, num_tokens, HEAD_DIM), key=mx.random.key(num_tokens))

        assert mx.allclose(shared(heads, offset=offsets), rope(heads, offset=offsets), rtol=1e-6, atol=1e-6)


def test_layers_that_rotate_alike_share_a_table_and_others_do_not() -> None:
    """Two of the three have one base; the norm of the model is replaced as well."""
    bases = (10_000.0, 10_000.0, 500_000.0)
    model = Model([nn.RoPE(HEAD_DIM, base=base) for base in bases])

    suit_cpu(model, HEAD_DIM)

    first, second, third = (layer.self_attn.rope for layer in model.layers)
    assert first is second
    assert isinstance(third, SharedRope)
    assert third is not first
    assert isinstance(model.norm, ShortRmsNorm)


def test_the_rotation_of_a_pass_is_computed_once() -> None:
    """The first layer computes it; the next pass, another length or another array of positions computes it again."""
    calls = []

    def rope(heads: Any, offset: Any) -> Any:
        calls.append(offset)
        return nn.RoPE(HEAD_DIM)(heads, offset=offset)

    shared = SharedRope(RotationTable(rope, HEAD_DIM))
    one, two = mx.ones((2, 1, 1, HEAD_DIM)), mx.ones((2, 1, 2, HEAD_DIM))
    offsets = mx.array([4, 9])
    for heads, offset in ((one, 7), (one, 7), (two, 7), (two, 8), (one, offsets), (one, offsets), (one, offsets + 0)):
        shared(heads, offset=offset)

    assert len(calls) == 5


@pytest.mark.parametrize(
    "rope", [nn.RoPE(HEAD_DIM // 2), nn.RoPE(HEAD_DIM, traditional=True)], ids=["part of a head", "neighbours"]
)
def test_ropes_of_another_kind_stay_as_they_are(rope: Any) -> None:
    """Trying shows that the table would not be right."""
    model = Model([rope])

    suit_cpu(model, HEAD_DIM)

    assert model.layers[0].self_attn.rope is rope


def test_layers_without_positions_stay_as_they_are() -> None:
    """Some layers of SmolLM3 do not rotate."""
    layer = SimpleNamespace(self_attn=SimpleNamespace())
    model = SimpleNamespace(modules=list, model=SimpleNamespace(layers=[layer]))

    suit_cpu(model, HEAD_DIM)

    assert not hasattr(layer.self_attn, "rope")
