"""The layers of decode steps of few rows on a CPU: one call of kernels, and nothing but arrays within."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from baton.engine.runners.torch.batch import PackedBatch
from baton.engine.runners.torch.ops.cpu.kernel_checks import Array, array_of, can_attend
from baton.engine.runners.torch.ops.eager.blocked_attention import AttentionParams
from baton.engine.runners.torch.ops.eager.linear import Linear
from baton.engine.runners.torch.pool import KvPool


class StreamedLayer(NamedTuple):
    """What a layer is to the kernels."""

    weights: tuple[Array, ...]
    """Those of both norms; weight and bias of queries, keys and values, of the output, of gates and others, of down."""
    epsilon: float
    """Of both norms."""
    scoring: AttentionParams
    """How scores become weights."""
    num_gates: int
    """Of the MLP."""
    max_rows: int
    """Rows up to which the kernels are worth it."""

    def is_like(self, other: StreamedLayer) -> bool:
        """Return whether nothing but numbers in memory makes the difference to another."""
        kinds = ([(array.shape, array.dtype) for array in layer.weights] for layer in (self, other))
        return self[1:] == other[1:] and next(kinds) == next(kinds)


class StreamedLayers:
    """Layers whose weights are read once per step.

    Args:
        layers: All, in order, each like the first.
        head: The product after them.
        num_query_heads: Heads of the queries.
    """

    def __init__(self, layers: Sequence[StreamedLayer], head: Linear, *, num_query_heads: int) -> None:
        self._layers = layers
        self._head = head.arrays()[0]
        self._num_query_heads = num_query_heads
        self._pool: KvPool | None = None
        self._addresses = np.empty((0, 0), np.int64)

    def serves(self, batch: PackedBatch) -> bool:
        """Return whether a batch is one token each of a few sequences, which all want logits and hand nothing over.

        None may have an adapter.
        """
        num_rows, max_rows = len(batch.segments), self._layers[0].max_rows
        is_plain = not (batch.has_sinks or batch.adapted)
        return 0 < num_rows <= max_rows and batch.num_rows == batch.num_logits == num_rows and is_plain

    def __call__(
        self, hidden: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], batch: PackedBatch
    ) -> torch.Tensor:
        """Return what the layers make of rows, in their place; K and V are written.

        Args:
            hidden: [num_rows, hidden_size].
            angles: Cosines and signed sines: [num_rows, 1, head_dim].
            batch: Whose rows they are; it is served.
        """
        from baton.engine.runners.torch.ops.cpu.numba_kernels.attention import attention_address
        from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import run_layers

        weights, epsilon, scoring, num_gates, _ = self._layers[0]
        keys, values = batch.pool.arrays(0)
        group, is_bfloat16 = self._num_query_heads // len(keys), hidden.dtype is torch.bfloat16
        address = attention_address(group, keys.shape[3], values.shape[3], is_bfloat16=is_bfloat16)
        single = batch.single_queries(batch.segments, scoring.window_tokens)
        assert single is not None, "a batch of single queries has some"
        run_layers(
            array_of(hidden),
            self._addresses_with(batch.pool),
            (*weights, keys, values, epsilon),
            num_gates,
            tuple(array_of(angle.contiguous()) for angle in angles),
            array_of(batch.slots()),
            (address, self._num_query_heads, tuple(single), np.float32(scoring.scaling)),
            self._head,
        )
        return hidden

    def _addresses_with(self, pool: KvPool) -> Array:
        """Return the addresses of all layers' weights, K and V: [num_layers, 12]."""
        if self._pool is not pool:
            rows = [(*layer.weights, *pool.arrays(index)) for index, layer in enumerate(self._layers)]
            self._addresses = np.array([[array.ctypes.data for array in row] for row in rows], np.int64)
            self._pool = pool
        return self._addresses


def streamed_layer(norms: Sequence[Any], projections: Sequence[Any], scoring: AttentionParams) -> StreamedLayer | None:
    """Return a layer, or None where the kernels do not serve.

    Args:
        norms: Before attention and before the MLP: weight and epsilon each.
        projections: Queries, keys and values; output; gates and others; down.
        scoring: How scores become weights.
    """
    linears = [linear for linear in projections if isinstance(linear, Linear) and linear.num_streamed_rows]
    if len(linears) < len(projections) or not scoring.is_plain or not can_attend(linears[0].dtype):
        return None
    if any(norm.weight.dtype is not linears[0].dtype or norm.epsilon != norms[0].epsilon for norm in norms):
        return None
    weights = [array_of(norm.weight.detach()) for norm in norms]
    weights += [array for linear in linears for array in linear.arrays()]
    max_rows = min(linear.num_streamed_rows for linear in linears)
    return StreamedLayer(tuple(weights), norms[0].epsilon, scoring, linears[2].num_outputs // 2, max_rows)


def streamed_layers(
    layers: Sequence[StreamedLayer | None], head: Linear, *, num_query_heads: int
) -> StreamedLayers | None:
    """Return all layers, or None where the kernels do not serve one, or layers are not alike."""
    served = [layer for layer in layers if layer is not None]
    if len(served) < len(layers) or not head.num_streamed_rows:
        return None
    if not all(layer.is_like(served[0]) for layer in served):
        return None
    return StreamedLayers(served, head, num_query_heads=num_query_heads)
