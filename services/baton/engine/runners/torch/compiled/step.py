"""All layers of a decode step of few rows, in one call: what Python does between calls takes longer than it looks.

Layers are alike but for the addresses of their weights and of their K and V.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from baton.engine.runners.torch.compiled.addresses import at_address
from baton.engine.runners.torch.compiled.attention import attend
from baton.engine.runners.torch.compiled.kernel import kernel
from baton.engine.runners.torch.compiled.layer import after_attention, before_attention

NUM_ADDRESSES = 12
"""Of a layer: the weights of both norms; weight and bias of queries, keys and values side by side, of the output, of
gates and others, and of down; K and V."""


@kernel
def run_layers(
    hidden: Any, addresses: Any, first: Any, num_gates: Any, angles: Any, slots: Any, attention: Any, head: Any
) -> None:
    """Pass rows through all layers; K and V are written.

    Args:
        hidden: Replaced by what the layers make of it: [num_rows, hidden_size].
        addresses: [num_layers, NUM_ADDRESSES].
        first: The first layer's arrays in the order of the addresses, and the epsilon of its norms behind them.
        num_gates: Of a layer.
        angles: Cosines and signed sines, [num_rows, 1, head_dim] each.
        slots: Where K and V go among the positions of all blocks: [num_rows].
        attention: Its address, how many heads queries have, the single queries, and the factor of the scores.
        head: Weight of the product after the last layer.
    """
    (norm, mlp_norm, qkv, qkv_bias, out, out_bias, gate_up, gate_up_bias, down, down_bias, keys, values, epsilon) = (
        first
    )
    address, num_query_heads, single, scaling = attention
    num_layers, num_rows = len(addresses), len(hidden)
    queries = np.empty((num_rows, num_query_heads, keys.shape[3]), hidden.dtype)
    attended = np.empty((num_rows, num_query_heads, values.shape[3]), hidden.dtype)
    for layer in range(num_layers):
        own = addresses[layer]
        kv = (at_address(keys, own[10]), at_address(values, own[11]))
        output = (at_address(out, own[4]), at_address(out_bias, own[5]))
        before_attention(
            hidden,
            (at_address(norm, own[0]), epsilon),
            (at_address(qkv, own[2]), at_address(qkv_bias, own[3])),
            angles,
            slots,
            kv,
            queries,
            output[0],
        )
        attend(address, queries, kv[0], kv[1], single, scaling, attended)
        after_attention(
            hidden,
            attended,
            output,
            (at_address(mlp_norm, own[1]), epsilon),
            (at_address(gate_up, own[6]), at_address(gate_up_bias, own[7])),
            num_gates,
            (at_address(down, own[8]), at_address(down_bias, own[9])),
            at_address(qkv, addresses[layer + 1, 2]) if layer + 1 < num_layers else head,
        )
