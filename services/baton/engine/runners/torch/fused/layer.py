"""One decoder layer: normalise, project, rotate, attend, project, normalise, gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import rms_norm, silu

from baton.engine.runners.torch.attention import attend_rows, store
from baton.engine.runners.torch.batch import Batch, PackedBatch
from baton.engine.runners.torch.between import launch as between
from baton.engine.runners.torch.blocked_attention import Scoring
from baton.engine.runners.torch.compiled.support import (
    array_of,
    can_multiply,
    can_stream_transposed,
    is_one_thread,
)
from baton.engine.runners.torch.fused.adapted import AdaptedProduct
from baton.engine.runners.torch.fused.linear import Linear
from baton.engine.runners.torch.fused.quantised import Projection, WeightDtype
from baton.engine.runners.torch.fused.streamed import StreamedLayer, streamed_layer
from baton.engine.runners.torch.huge_pages import Memory
from baton.engine.runners.torch.lora import NO_ADAPTERS, AdaptedRows, AdapterLayers
from baton.engine.runners.torch.parallel.ranks import Ranks
from baton.engine.runners.torch.pool import KeysValues
from baton.engine.runners.torch.triton_support import runs_triton

_PRODUCTS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Projections of one input each, by their names in transformers' layer."""


class Rotation(NamedTuple):
    """Angles of the rotary embedding at the positions of some rows."""

    cosines: torch.Tensor
    """[num_rows, 1, head_dim]."""
    signed_sines: torch.Tensor
    """[num_rows, 1, head_dim], the first half negated: what rotating the halves against each other asks for."""

    def of(self, rows: torch.Tensor) -> Rotation:
        """Return those of some of the rows."""
        return Rotation(self.cosines[rows], self.signed_sines[rows])

    def rotate(self, heads: torch.Tensor) -> torch.Tensor:
        """Return queries or keys [num_rows, num_heads, head_dim], rotated."""
        swapped = heads.roll(heads.shape[-1] // 2, -1)
        return torch.addcmul(heads * self.cosines, swapped, self.signed_sines)


class Norm(NamedTuple):
    """Root-mean-square normalisation."""

    weight: torch.Tensor
    """[size]."""
    epsilon: float
    """Added to the mean square."""

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """Return values [..., size], normalised and scaled."""
        if values.dim() == 2 and self.weight.dtype is values.dtype and runs_compiled(values):
            from baton.engine.runners.torch.compiled.elementwise import normalise

            output = torch.empty_like(values)
            normalise(array_of(values), array_of(self.weight), self.epsilon, array_of(output))
            return output
        return rms_norm(values, self.weight.shape, self.weight, self.epsilon)


class FusedLayer:
    """A layer whose query, key and value projections are one product, and whose gate and up projections are another.

    Args:
        layer: transformers' layer. Its projections are emptied, so that no weight is held twice.
        index: Which layer it is.
        head_dim: Elements of one head.
        window_tokens: Positions that a query sees, its own included; 0: all.
        ranks: Who holds the other heads and columns of a layer of which this is a share.
        weight_dtype: In what the projections are held.
        adapters: All that are loaded.

    Attributes:
        streamed: What it is to steps of few rows; None where Baton's kernels do not serve.
        num_query_heads: Heads of the queries.
    """

    def __init__(
        self,
        layer: Any,
        index: int,
        *,
        head_dim: int,
        window_tokens: int,
        ranks: Ranks,
        weight_dtype: WeightDtype = "auto",
        adapters: AdapterLayers = NO_ADAPTERS,
    ) -> None:
        attention = layer.self_attn
        self._ranks = ranks
        self._index = index
        self._head_dim = head_dim
        self._scoring = Scoring(float(attention.scaling), window_tokens)
        self.num_query_heads = attention.q_proj.out_features // head_dim
        self._num_kv_heads = attention.k_proj.out_features // head_dim
        self._attention_norm = norm_of(layer.input_layernorm)
        self._mlp_norm = norm_of(layer.post_attention_layernorm)
        self._query_norm = norm_of(attention.q_norm) if hasattr(attention, "q_norm") else None
        self._key_norm = norm_of(attention.k_norm) if hasattr(attention, "k_norm") else None
        self._qkv, self._output, self._gate_up, self._down = (
            AdaptedProduct({name: layer.get_submodule(name) for name in names}, index, weight_dtype, adapters)
            for names in _PRODUCTS
        )
        self.streamed = self._stream()

    def memory(self) -> list[Memory]:
        """Return where the weights of the products are, on a CPU, but for those that are rounded."""
        return [plain.memory() for plain in self._plain_products() if isinstance(plain, Linear)]

    def __call__(self, hidden: torch.Tensor, rotation: Rotation, batch: Batch) -> torch.Tensor:
        """Return [num_rows, hidden_size] of the same."""
        query = self._project(hidden, rotation, batch)
        attended = attend_rows(batch, batch.segments, self._index, query, self._scoring)
        return self._finish(hidden, attended, batch.adapted)

    def last(self, hidden: torch.Tensor, rotation: Rotation, batch: Batch) -> torch.Tensor:
        """Return the rows whose logits are wanted; of the others only K and V are computed."""
        if batch.num_logits == batch.num_rows:
            return self(hidden, rotation, batch)
        query = self._project(hidden, rotation, batch)
        if not batch.last_segments:
            return hidden[:0]
        rows = batch.last_rows()
        attended = attend_rows(batch, batch.last_segments, self._index, query[:, rows], self._scoring)
        return self._finish(hidden[rows], attended, batch.last_adapted)

    def _stream(self) -> StreamedLayer | None:
        """Return the layer for steps of few rows, where it is one that kernels compute."""
        if self._ranks.size > 1 or self._query_norm is not None:
            return None
        return streamed_layer((self._attention_norm, self._mlp_norm), self._plain_products(), self._scoring)

    def _plain_products(self) -> list[Projection]:
        return [product.plain for product in (self._qkv, self._output, self._gate_up, self._down)]

    def _project(self, hidden: torch.Tensor, rotation: Rotation, batch: Batch) -> torch.Tensor:
        """Write K and V into their blocks; return the queries, [num_query_heads, num_rows, head_dim]."""
        heads = self._qkv(self._attention_norm(hidden), batch.adapted).view(hidden.shape[0], -1, self._head_dim)
        if runs_triton(heads.device) and not batch.has_sinks:
            pool, norms = batch.pool.layer(self._index), self._head_norms()
            return between.rotate_and_store(heads, *rotation, norms, batch.slots(), pool).transpose(0, 1)
        if isinstance(batch, PackedBatch) and not batch.has_sinks and self._query_norm is None and runs_compiled(heads):
            return self._rotate_and_store(heads, rotation, batch)
        num_rotated = self.num_query_heads + self._num_kv_heads
        rotated = rotation.rotate(self._normalise_heads(heads[:, :num_rotated]))
        query, key = rotated.split((self.num_query_heads, self._num_kv_heads), dim=1)
        store(batch, self._index, KeysValues(key.transpose(0, 1), heads[:, num_rotated:].transpose(0, 1)))
        return query.transpose(0, 1)

    def _rotate_and_store(self, heads: torch.Tensor, rotation: Rotation, batch: PackedBatch) -> torch.Tensor:
        from baton.engine.runners.torch.compiled.elementwise import rotate_and_store

        queries = heads.new_empty(heads.shape[0], self.num_query_heads, self._head_dim)
        blocks = batch.pool.arrays(self._index)
        angles = (array_of(rotation.cosines), array_of(rotation.signed_sines))
        rotate_and_store(array_of(heads), *angles, array_of(batch.slots()), *blocks, array_of(queries))
        return queries.transpose(0, 1)

    def _head_norms(self) -> between.HeadNorms | None:
        if self._query_norm is None or self._key_norm is None:
            return None
        return between.HeadNorms(self._query_norm.weight, self._key_norm.weight, self._query_norm.epsilon)

    def _normalise_heads(self, heads: torch.Tensor) -> torch.Tensor:
        if self._query_norm is None or self._key_norm is None:
            return heads
        query, key = heads.split((self.num_query_heads, self._num_kv_heads), dim=1)
        return torch.cat([self._query_norm(query), self._key_norm(key)], dim=1)

    def _finish(self, hidden: torch.Tensor, attended: torch.Tensor, adapted: Sequence[AdaptedRows]) -> torch.Tensor:
        rows = attended.transpose(0, 1).reshape(hidden.shape[0], -1)
        delta = self._ranks.sum(self._output(rows, adapted))
        if runs_triton(hidden.device):
            hidden, normalised = between.add_and_normalise(hidden, delta, *self._mlp_norm)
            activated = between.gate(self._gate_up(normalised, adapted))
        else:
            hidden = hidden + delta
            activated = gated(self._gate_up(self._mlp_norm(hidden), adapted))
        return hidden + self._ranks.sum(self._down(activated, adapted))


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """Return SiLU of the gates times the others, [num_rows, size] of [num_rows, 2 * size], gates first."""
    if runs_compiled(gate_up):
        from baton.engine.runners.torch.compiled.elementwise import gate

        output = gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        gate(array_of(gate_up), array_of(output))
        return output
    gates, others = gate_up.chunk(2, dim=-1)
    return silu(gates) * others


def runs_compiled(rows: torch.Tensor) -> bool:
    """Return whether what goes between the products of these rows is done by Baton's kernels, which use one thread."""
    serves = rows.is_cpu and is_one_thread() and rows.is_contiguous()
    return serves and (can_multiply(rows.dtype) or can_stream_transposed(rows.dtype))


def norm_of(module: Any) -> Norm:
    """Return the normalisation of a transformers RMSNorm."""
    return Norm(module.weight, float(module.variance_epsilon))
