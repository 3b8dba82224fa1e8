"""The forward pass of a dense Llama-like model over packed spans.

One decoder layer: normalise, project, rotate, attend, project, normalise, gate.

A product with what adapters add to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.nn.functional import embedding, rms_norm, silu

from baton.engine.runners.torch.batch import PackedBatch, RowBatch
from baton.engine.runners.torch.lora import NO_ADAPTERS, AdaptedRows, AdapterLayers, Additions
from baton.engine.runners.torch.ops.cpu.decode_step import StreamedLayer, streamed_layer, streamed_layers
from baton.engine.runners.torch.ops.cpu.huge_pages import MemoryRange
from baton.engine.runners.torch.ops.cpu.kernel_checks import (
    array_of,
    can_multiply,
    can_stream_transposed,
    is_one_thread,
)
from baton.engine.runners.torch.ops.cuda import elementwise as between
from baton.engine.runners.torch.ops.eager.attention import attend_rows, store
from baton.engine.runners.torch.ops.eager.blocked_attention import AttentionParams
from baton.engine.runners.torch.ops.eager.linear import Linear
from baton.engine.runners.torch.ops.eager.quantised import Projection, WeightDtype, projection
from baton.engine.runners.torch.ops.triton_support import runs_triton
from baton.engine.runners.torch.pool import KeysValues
from baton.engine.runners.torch.tensor_parallel.ranks import Alone, Ranks
from baton.kv.kv_format import KvLayout

_ROPES_THAT_READ_POSITIONS = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies depend on the longest position of a pass."""

_ALONE = Alone()


class LlamaModel:
    """A model in Baton's own code, with the weights and the rotary embedding of transformers' model.

    Args:
        model: transformers' model, which `support.is_llama_like` has accepted; taken apart, of no use afterwards.
        layout: Its KV cache, of all ranks.
        ranks: Who holds the rest of a model of which this is a share.
        weight_dtype: In what the projections of the layers are held.
        adapters: All that are loaded.
    """

    name = "baton"

    def __init__(
        self,
        model: Any,
        layout: KvLayout,
        ranks: Ranks = _ALONE,
        weight_dtype: WeightDtype = "auto",
        adapters: AdapterLayers = NO_ADAPTERS,
    ) -> None:
        decoder = model.get_decoder()
        self._ranks = ranks
        self._embedding = decoder.embed_tokens.weight
        self._rotary = decoder.rotary_emb
        self.is_capturable = self._rotary.rope_type not in _ROPES_THAT_READ_POSITIONS
        self._norm = norm_of(decoder.norm)
        self._layers: list[LlamaLayer] = []
        for index, spec in enumerate(layout.layers):
            fused = LlamaLayer(
                decoder.layers[index],
                index,
                head_dim=spec.key_head_dim,
                window_tokens=spec.sliding_window_tokens,
                ranks=ranks,
                weight_dtype=weight_dtype,
                adapters=adapters,
            )
            decoder.layers[index] = torch.nn.Identity()  # lets go of its weights before the next layer doubles its own
            self._layers.append(fused)
        self._head = Linear([model.get_output_embeddings()])
        streamed, num_query_heads = [layer.streamed for layer in self._layers], self._layers[0].num_query_heads
        self._streamed = streamed_layers(streamed, self._head, num_query_heads=num_query_heads)

    def logits(self, batch: RowBatch) -> torch.Tensor:
        """Return the logits of the wanted rows: [num_logits, vocabulary_size]."""
        hidden = embedding(batch.token_ids()[0], self._embedding)
        rotation = self._rotation(hidden, batch.positions())
        if self._streamed is not None and isinstance(batch, PackedBatch) and self._streamed.serves(batch):
            hidden = self._streamed(hidden, (rotation.cosines, rotation.signed_sines), batch)
        else:
            for layer in self._layers[:-1]:
                hidden = layer(hidden, rotation, batch)
            hidden = self._layers[-1].last(hidden, rotation, batch)
        logits = self._ranks.join(self._head(self._norm(hidden)))
        return logits[:, : len(self._embedding)]

    def memory(self) -> list[MemoryRange]:
        """Return where the weights are that every pass reads, on a CPU."""
        return [self._head.memory(), *(memory for layer in self._layers for memory in layer.memory())]

    def _rotation(self, hidden: torch.Tensor, positions: torch.Tensor) -> Rotation:
        cosines, sines = self._rotary(hidden[None], positions)
        half = sines.shape[-1] // 2
        signed_sines = torch.cat([-sines[0, :, :half], sines[0, :, half:]], dim=-1)
        return Rotation(cosines[0, :, None], signed_sines[:, None])


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
            from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import normalise

            output = torch.empty_like(values)
            normalise(array_of(values), array_of(self.weight), self.epsilon, array_of(output))
            return output
        return rms_norm(values, self.weight.shape, self.weight, self.epsilon)


class LlamaLayer:
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
        self._scoring = AttentionParams(float(attention.scaling), window_tokens)
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

    def memory(self) -> list[MemoryRange]:
        """Return where the weights of the products are, on a CPU, but for those that are rounded."""
        return [plain.memory() for plain in self._plain_products() if isinstance(plain, Linear)]

    def __call__(self, hidden: torch.Tensor, rotation: Rotation, batch: RowBatch) -> torch.Tensor:
        """Return [num_rows, hidden_size] of the same."""
        query = self._project(hidden, rotation, batch)
        attended = attend_rows(batch, batch.segments, self._index, query, self._scoring)
        return self._finish(hidden, attended, batch.adapted)

    def last(self, hidden: torch.Tensor, rotation: Rotation, batch: RowBatch) -> torch.Tensor:
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

    def _project(self, hidden: torch.Tensor, rotation: Rotation, batch: RowBatch) -> torch.Tensor:
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
        from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import rotate_and_store

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
        from baton.engine.runners.torch.ops.cpu.numba_kernels.decode_step import gate

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


class AdaptedProduct:
    """Projections of the same input, outputs side by side, for rows with adapters and without.

    Args:
        modules: The projections by name (`baton.engine.checkpoint.lora.PROJECTIONS`), in order of their outputs.
        layer: Whose they are.
        weight_dtype: In what their weights are held; adapters keep the dtype of activations.
        adapters: All that are loaded.

    Attributes:
        plain: The product without adapters.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        layer: int,
        weight_dtype: WeightDtype = "auto",
        adapters: AdapterLayers = NO_ADAPTERS,
    ) -> None:
        self.plain = projection(list(modules.values()), weight_dtype)
        self._additions = Additions(adapters, layer, {name: module.out_features for name, module in modules.items()})

    def __call__(self, rows: torch.Tensor, adapted: Sequence[AdaptedRows] = ()) -> torch.Tensor:
        """Return [num_rows, num_outputs] of [num_rows, num_inputs]; `adapted` says which rows have adapters."""
        output = self.plain(rows)
        if adapted:
            self._additions.add(output, rows, adapted)
        return output
