"""Layers for decode steps of few rows on a CPU: three calls of kernels each, and nothing but arrays between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from baton.engine.runners.torch.batch import PackedBatch
from baton.engine.runners.torch.blocked_attention import Scoring
from baton.engine.runners.torch.compiled.support import Array, array_of, can_attend
from baton.engine.runners.torch.fused.linear import Linear


class StreamedLayer:
    """A layer whose weights are read once per step.

    Args:
        index: Which layer it is.
        norms: Before attention and before the MLP: weight and epsilon each.
        linears: Queries, keys and values; output; gates and others; down.
        num_query_heads: Heads of the queries.
        scoring: How scores become weights.
    """

    def __init__(
        self, index: int, norms: Sequence[Any], linears: Sequence[Linear], *, num_query_heads: int, scoring: Scoring
    ) -> None:
        self._index = index
        self._norms = [(array_of(norm.weight.detach()), norm.epsilon) for norm in norms]
        self._products = [linear.arrays() for linear in linears]
        self._num_gates = linears[2].num_outputs // 2
        self._num_rows = min(linear.num_streamed_rows for linear in linears)
        self._num_query_heads = num_query_heads
        self._scoring = scoring

    def serves(self, batch: PackedBatch) -> bool:
        """Return whether a batch is one token each of a few sequences, which all want logits and hand nothing over.

        None may have an adapter.
        """
        num_rows = len(batch.segments)
        is_plain = not (batch.has_sinks or batch.adapted)
        return 0 < num_rows <= self._num_rows and batch.num_rows == batch.num_logits == num_rows and is_plain

    def __call__(self, hidden: Array, angles: tuple[Array, Array], slots: Array, batch: PackedBatch) -> Array:
        """Return [num_rows, hidden_size] of the same; K and V are written."""
        from baton.engine.runners.torch.compiled.attention import paged_attention
        from baton.engine.runners.torch.compiled.layer import after_attention, before_attention

        keys, values = batch.pool.arrays(self._index)
        qkv, output, gate_up, down = self._products
        num_groups, sizes = self._num_query_heads // len(keys), (keys.shape[3], values.shape[3])
        queries, attended = (np.empty((len(hidden), self._num_query_heads, size), hidden.dtype) for size in sizes)
        before_attention(hidden, self._norms[0], qkv, *angles, slots, keys, values, queries)
        single = batch.single_queries(batch.segments, self._scoring.window_tokens)
        assert single is not None, "a batch of single queries has some"
        scaling = np.float32(self._scoring.scaling)
        paged_attention(num_groups, *sizes)(queries, keys, values, *single, scaling, attended)
        result = np.empty_like(hidden)
        after_attention(hidden, attended, output, self._norms[1], gate_up, self._num_gates, down, result)
        return result


def streamed_layer(
    index: int, norms: Sequence[Any], projections: Sequence[Any], *, num_query_heads: int, scoring: Scoring
) -> StreamedLayer | None:
    """Return a layer, or None where the kernels do not serve; arguments as `StreamedLayer` has them."""
    linears = [linear for linear in projections if isinstance(linear, Linear) and linear.num_streamed_rows]
    if len(linears) < len(projections) or not scoring.is_plain or not can_attend(linears[0].dtype):
        return None
    if any(norm.weight.dtype is not linears[0].dtype for norm in norms):
        return None
    return StreamedLayer(index, norms, linears, num_query_heads=num_query_heads, scoring=scoring)


def stream(
    layers: Sequence[StreamedLayer], hidden: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], batch: PackedBatch
) -> torch.Tensor:
    """Return what the layers make of [num_rows, hidden_size].

    Args:
        layers: All, in order.
        hidden: The rows.
        angles: Cosines and signed sines: [num_rows, 1, head_dim].
        batch: Whose rows they are; the layers serve it.
    """
    rows, slots = array_of(hidden), array_of(batch.slots())
    cosines, signed_sines = (array_of(angle.contiguous()) for angle in angles)
    for layer in layers:
        rows = layer(rows, (cosines, signed_sines), slots, batch)
    result = torch.from_numpy(rows)
    return result.view(hidden.dtype) if hidden.dtype is torch.bfloat16 else result
