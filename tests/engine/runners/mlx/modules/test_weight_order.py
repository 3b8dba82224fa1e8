"""In which order the weights of the mlx engine lie on a CPU."""

from __future__ import annotations

import pytest

pytest.importorskip("mlx.core")

import mlx.core as mx
import mlx.nn as nn

from baton.engine.runners.mlx.modules import weight_order
from baton.engine.runners.mlx.modules.weight_order import InputFirstLinear, gain_of, order_weights

LARGE = 1024, 512


class Layer(nn.Module):
    """Projections of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(LARGE[1], LARGE[0], bias=False)
        self.biased = nn.Linear(LARGE[1], LARGE[0])
        self.small = nn.Linear(32, 32)
        self.quantized = nn.QuantizedLinear(LARGE[1], LARGE[0])


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_turned_weight_computes_the_same(has_bias: bool) -> None:
    """The bias is kept."""
    linear = nn.Linear(24, 40, bias=has_bias)
    rows = mx.random.normal((2, 3, 24), key=mx.random.key(0))

    turned = InputFirstLinear(linear)

    assert turned.weight.shape == (24, 40)
    assert mx.allclose(turned(rows), linear(rows), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("gain", "kind"), [(1.3, InputFirstLinear), (1.01, nn.Linear), (0.8, nn.Linear)])
def test_large_weights_are_turned_where_that_pays(
    gain: float, kind: type[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small and quantised ones stay."""
    monkeypatch.setattr(weight_order, "gain_of", lambda _: gain)
    layers = [Layer(), Layer()]

    order_weights(layers)

    for layer in layers:
        assert type(layer.large) is kind
        assert type(layer.biased) is kind
        assert type(layer.small) is nn.Linear
        assert type(layer.quantized) is nn.QuantizedLinear


def test_gain_is_a_ratio_of_times() -> None:
    """It is measured on the weights themselves."""
    linears = [nn.Linear(64, 64) for _ in range(3)]
    mx.eval([linear.parameters() for linear in linears])

    assert gain_of(linears) > 0
