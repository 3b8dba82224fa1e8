"""A decoder layer for few rows but for its attention.

Each product ends by asking memory for the beginning of the next one's weights: what goes between them takes a
microsecond, in which memory would rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baton.engine.runners.torch.compiled.elementwise import add, gate, normalise, rotate_and_store
from baton.engine.runners.torch.compiled.kernel import kernel
from baton.engine.runners.torch.compiled.product import multiply
from baton.engine.runners.torch.compiled.vectors import prefetch_start


@kernel
def before_attention(
    hidden: Any, norm: Any, product: Any, angles: Any, slots: Any, kv: Any, queries: Any, following: Any
) -> None:
    """Normalise, project, rotate; write K and V into their slots.

    Args:
        hidden: [num_rows, hidden_size].
        norm: Weight [hidden_size] and epsilon.
        product: Weight and bias of queries, keys and values side by side.
        angles: Cosines and signed sines, as `rotate_and_store` takes them, like all that follows.
        slots: The same.
        kv: The layer's keys and values.
        queries: Written: [num_rows, num_heads, head_dim].
        following: Weight of the next product.
    """
    num_rows, num_heads, head_dim = queries.shape
    num_heads += 2 * kv[0].shape[0]
    normalised = np.empty_like(hidden)
    normalise(hidden, norm[0], norm[1], normalised)
    projected = np.empty((num_rows, num_heads * head_dim), hidden.dtype)
    multiply(normalised, product[0], product[1], projected)
    prefetch_start(following)
    heads = projected.reshape((num_rows, num_heads, head_dim))
    rotate_and_store(heads, angles[0], angles[1], slots, kv[0], kv[1], queries)


@kernel
def after_attention(
    hidden: Any, attended: Any, output: Any, norm: Any, gate_up: Any, num_gates: Any, down: Any, following: Any
) -> None:
    """Project what was attended to, add, normalise, gate, add.

    Args:
        hidden: What the layer was given, replaced by what it makes of it: [num_rows, hidden_size].
        attended: [num_rows, num_heads, head_dim].
        output: Weight and bias.
        norm: Weight [hidden_size] and epsilon.
        gate_up: Weight and bias, the gates first.
        num_gates: How many gates there are.
        down: Weight and bias.
        following: Weight of the next product.
    """
    num_rows = hidden.shape[0]
    delta, normalised = np.empty_like(hidden), np.empty_like(hidden)
    multiply(attended.reshape((num_rows, attended.shape[1] * attended.shape[2])), output[0], output[1], delta)
    prefetch_start(gate_up[0])
    add(hidden, delta)
    normalise(hidden, norm[0], norm[1], normalised)
    both = np.empty((num_rows, 2 * num_gates), hidden.dtype)
    gated = np.empty((num_rows, num_gates), hidden.dtype)
    multiply(normalised, gate_up[0], gate_up[1], both)
    prefetch_start(down[0])
    gate(both, gated)
    multiply(gated, down[0], down[1], delta)
    prefetch_start(following)
    add(hidden, delta)
