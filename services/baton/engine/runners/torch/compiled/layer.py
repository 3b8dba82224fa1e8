"""A decoder layer for few rows but for its attention, as two calls: what Python does between twelve takes longer."""

from __future__ import annotations

from typing import Any

import numpy as np

from baton.engine.runners.torch.compiled.elementwise import gate, normalise, rotate_and_store
from baton.engine.runners.torch.compiled.kernel import kernel
from baton.engine.runners.torch.compiled.numbers import narrow, widen
from baton.engine.runners.torch.compiled.product import multiply


@kernel
def before_attention(
    hidden: Any, norm: Any, product: Any, cosines: Any, signed_sines: Any, slots: Any, keys: Any, values: Any, out: Any
) -> None:
    """Normalise, project, rotate; write K and V into their slots.

    Args:
        hidden: [num_rows, hidden_size].
        norm: Weight [hidden_size] and epsilon.
        product: Panels and bias of queries, keys and values side by side.
        cosines: As `rotate_and_store` takes them, like all that follows.
        signed_sines: The same.
        slots: The same.
        keys: The same.
        values: The same.
        out: The queries: [num_rows, num_heads, head_dim].
    """
    weight, epsilon = norm
    panels, bias = product
    normalised = np.empty_like(hidden)
    normalise(hidden, weight, epsilon, normalised)
    num_heads, head_dim = out.shape[1] + 2 * keys.shape[0], out.shape[2]
    projected = np.empty((hidden.shape[0], num_heads * head_dim), hidden.dtype)
    multiply(normalised, panels, bias, projected)
    heads = projected.reshape((hidden.shape[0], num_heads, head_dim))
    rotate_and_store(heads, cosines, signed_sines, slots, keys, values, out)


@kernel
def after_attention(
    hidden: Any, attended: Any, output: Any, norm: Any, gate_up: Any, num_gates: Any, down: Any, out: Any
) -> None:
    """Project what was attended to, add, normalise, gate, add.

    Args:
        hidden: What the layer was given: [num_rows, hidden_size].
        attended: [num_rows, num_heads, head_dim].
        output: Panels and bias.
        norm: Weight [hidden_size] and epsilon.
        gate_up: Panels and bias, the gates first.
        num_gates: How many gates there are.
        down: Panels and bias.
        out: [num_rows, hidden_size].
    """
    weight, epsilon = norm
    num_rows = hidden.shape[0]
    delta, middle, normalised = np.empty_like(hidden), np.empty_like(hidden), np.empty_like(hidden)
    multiply(attended.reshape((num_rows, attended.shape[1] * attended.shape[2])), output[0], output[1], delta)
    _add(hidden, delta, middle)
    normalise(middle, weight, epsilon, normalised)
    both = np.empty((num_rows, 2 * num_gates), hidden.dtype)
    gated = np.empty((num_rows, num_gates), hidden.dtype)
    multiply(normalised, gate_up[0], gate_up[1], both)
    gate(both, gated)
    multiply(gated, down[0], down[1], delta)
    _add(middle, delta, out)


@kernel
def _add(left: Any, right: Any, out: Any) -> None:
    for row in range(out.shape[0]):
        for element in range(out.shape[1]):
            out[row, element] = narrow(widen(left[row, element]) + widen(right[row, element]), out)
