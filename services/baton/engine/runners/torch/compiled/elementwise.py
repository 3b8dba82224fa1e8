"""What a layer does between its products, in one pass over few rows each: no intermediate array, no dispatch."""

from __future__ import annotations

from typing import Any

import numpy as np

from baton.engine.runners.torch.compiled.kernel import kernel
from baton.engine.runners.torch.compiled.numbers import exponential, narrow, widen


@kernel
def normalise(rows: Any, weight: Any, epsilon: Any, output: Any) -> None:
    """Write rows [num_rows, size] divided by their root mean square, times the weight [size]."""
    for row in range(rows.shape[0]):
        squares = np.float32(0)
        for element in range(rows.shape[1]):
            value = widen(rows[row, element])
            squares += value * value
        factor = np.float32(1) / np.sqrt(squares / np.float32(rows.shape[1]) + np.float32(epsilon))
        for element in range(rows.shape[1]):
            output[row, element] = narrow(widen(rows[row, element]) * factor * widen(weight[element]), output)


@kernel
def gate(gate_up: Any, output: Any) -> None:
    """Write up times SiLU of gate: [num_rows, size] of [num_rows, 2 * size], the gates first."""
    size = output.shape[1]
    for row in range(output.shape[0]):
        for element in range(size):
            value = widen(gate_up[row, element])
            activated = value / (np.float32(1) + exponential(-value))
            output[row, element] = narrow(activated * widen(gate_up[row, size + element]), output)


@kernel
def rotate_and_store(
    heads: Any, cosines: Any, signed_sines: Any, slots: Any, keys: Any, values: Any, queries: Any
) -> None:
    """Write queries, rotated, and K, rotated, and V into their slots.

    Args:
        heads: Queries, keys and values side by side: [num_rows, num_heads + 2 * num_kv_heads, head_dim].
        cosines: [num_rows, 1, head_dim].
        signed_sines: [num_rows, 1, head_dim], the first half negated.
        slots: Where K and V go among the positions of all blocks: [num_rows].
        keys: The layer's blocks: [num_kv_heads, num_blocks, block_tokens, head_dim].
        values: The same.
        queries: [num_rows, num_heads, head_dim].
    """
    num_heads, num_kv_heads = queries.shape[1], keys.shape[0]
    block_tokens, head_dim = keys.shape[2], keys.shape[3]
    half = head_dim // 2
    rotated = np.empty(head_dim, np.float32)
    for row in range(heads.shape[0]):
        block, offset = divmod(slots[row], block_tokens)
        for head in range(num_heads + num_kv_heads):
            for element in range(half):
                first, second = widen(heads[row, head, element]), widen(heads[row, head, half + element])
                rotated[element] = first * widen(cosines[row, 0, element]) + second * widen(
                    signed_sines[row, 0, element]
                )
                rotated[half + element] = second * widen(cosines[row, 0, half + element]) + first * widen(
                    signed_sines[row, 0, half + element]
                )
            if head < num_heads:
                for element in range(head_dim):
                    queries[row, head, element] = narrow(rotated[element], queries)
            else:
                for element in range(head_dim):
                    keys[head - num_heads, block, offset, element] = narrow(rotated[element], keys)
        for head in range(num_kv_heads):
            for element in range(head_dim):
                values[head, block, offset, element] = heads[row, num_heads + num_kv_heads + head, element]


@kernel
def add(rows: Any, others: Any) -> None:
    """Add rows [num_rows, size] to the first."""
    for row in range(rows.shape[0]):
        for element in range(rows.shape[1]):
            rows[row, element] = narrow(widen(rows[row, element]) + widen(others[row, element]), rows)
