"""The order in which a CPU reads weights faster: [inputs, outputs], or [outputs, inputs] as checkpoints have them.

The BLAS copies a weight into its own layout in every product, and what that costs depends on the order, the CPU and the
library: with OpenBLAS' code for AVX2 a product with one row takes 0.8 of the time, with that for AVX-512 1.07.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn

log = logging.getLogger(__name__)

_LEAST_WEIGHT_BYTES = 1 << 20
_TRIED_BYTES = 64 << 20
"""Weights of one shape that are tried: more than a core's caches hold."""
_TRIED_ROWS = (1, 8)
_NUM_ROUNDS = 3
_MIN_GAIN = 1.05
"""By less, the order stays."""


class InputFirstLinear(nn.Module):  # type: ignore[misc] # mlx has no types for it
    """A projection whose weight is [inputs, outputs]."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.weight = mx.contiguous(linear.weight.T)
        if "bias" in linear:
            self.bias = linear.bias
        mx.eval(self.weight)

    def __call__(self, rows: mx.array) -> mx.array:
        """Return [..., outputs] for [..., inputs]."""
        if "bias" in self:
            biased: mx.array = mx.addmm(self.bias, rows, self.weight)
            return biased
        product: mx.array = rows @ self.weight
        return product


def order_weights(layers: Sequence[Any]) -> None:
    """Turn the weights of layers, shape by shape, where trying shows that their products take less time then.

    Projections that are quantised or small stay as they are.
    """
    places: dict[tuple[int, ...], list[tuple[Any, str]]] = {}
    for layer in layers:
        for module in layer.modules():
            for name, child in module.items():
                if type(child) is nn.Linear and child.weight.nbytes >= _LEAST_WEIGHT_BYTES:
                    places.setdefault(child.weight.shape, []).append((module, name))
    for shape, found in places.items():
        gain = gain_of([module[name] for module, name in found])
        log.info("weights_tried outputs=%d inputs=%d gain_input_first=%.2f", *shape, gain)
        if gain >= _MIN_GAIN:
            for module, name in found:
                setattr(module, name, InputFirstLinear(module[name]))


def gain_of(linears: Sequence[Any]) -> float:
    """Return how many times faster the products with some weights of one shape are with inputs first."""
    weight = linears[0].weight
    tried = list(linears[: max(1, _TRIED_BYTES // weight.nbytes)])
    turned = [InputFirstLinear(linear) for linear in tried]
    quickest = {0: float("inf"), 1: float("inf")}
    inputs = [mx.ones((num_rows, weight.shape[1]), weight.dtype) for num_rows in _TRIED_ROWS]
    for _ in range(_NUM_ROUNDS):
        for number, modules in enumerate((tried, turned)):
            started = time.perf_counter()
            mx.eval([module(rows) for rows in inputs for module in modules])
            quickest[number] = min(quickest[number], time.perf_counter() - started)
    return quickest[0] / quickest[1]
