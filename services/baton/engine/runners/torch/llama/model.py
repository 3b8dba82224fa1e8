"""The forward pass of a dense Llama-like model over packed spans; `DeviceOps` is how a device does each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from baton.engine.runners.base import ModelInfo
from baton.engine.runners.torch.batch import RowBatch
from baton.engine.runners.torch.lora import NO_ADAPTERS, AdaptedRows, AdapterLayers, Additions
from baton.engine.runners.torch.ops.device import MemoryRange
from baton.engine.runners.torch.ops.device_ops import DeviceOps, HeadNorms, LayerParts, Norm, Rotation
from baton.engine.runners.torch.ops.eager.attention import AttentionParams
from baton.engine.runners.torch.ops.eager.linear import Linear
from baton.engine.runners.torch.ops.eager.quantised import WeightDtype
from baton.kv.kv_format import KvLayout

_ROPES_THAT_READ_POSITIONS = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies depend on the longest position of a pass."""
_PRODUCTS = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.o_proj",),
    ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)
"""Projections of one input each, by their names in transformers' layer."""


class Ranks(Protocol):
    """The place of a device among those that hold shares of one model, and how shares become whole."""

    rank: int
    """This one, from 0."""
    size: int
    """All of them, 1 or more."""

    def take_share(self, model: Any) -> None:
        """Leave this rank its share of a transformers model that `llama.support.is_llama_like` has accepted."""

    def share_of(self, info: ModelInfo) -> ModelInfo:
        """Return the description of what one rank holds of a model."""

    def sum(self, share: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors; the own one may be overwritten."""

    def join(self, share: torch.Tensor) -> torch.Tensor:
        """Return all ranks' tensors beside each other, along the last dimension."""

    def least(self, number: int) -> int:
        """Return the least of all ranks' numbers, below 2**63."""


class Alone:
    """A model that one device holds whole."""

    rank = 0
    size = 1

    def take_share(self, model: Any) -> None:
        """Leave the model as it is."""

    def share_of(self, info: ModelInfo) -> ModelInfo:
        """Return the description."""
        return info

    def sum(self, share: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return share

    def join(self, share: torch.Tensor) -> torch.Tensor:
        """Return the tensor."""
        return share

    def least(self, number: int) -> int:
        """Return the number."""
        return number


_ALONE = Alone()


class Residual(NamedTuple):
    """What flows from layer to layer, [num_rows, hidden_size]; the last sum is left to who normalises it."""

    hidden: torch.Tensor
    delta: torch.Tensor | None = None
    """What is still to be added; None: nothing."""

    def normalised(self, ops: DeviceOps, norm: Norm) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the sum, and the same normalised and scaled."""
        if self.delta is None:
            return self.hidden, ops.normalise(self.hidden, norm)
        return ops.add_and_normalise(self.hidden, self.delta, norm)


class LlamaModel:
    """A model in Baton's own code, with the weights and the rotary embedding of transformers' model.

    `model` is transformers', which `support.is_llama_like` has accepted; taken apart, of no use afterwards. `ranks`
    hold the rest of a model of which this is a share.
    """

    name = "baton"

    def __init__(
        self,
        model: Any,
        layout: KvLayout,
        ops: DeviceOps,
        ranks: Ranks = _ALONE,
        weight_dtype: WeightDtype = "auto",
        adapters: AdapterLayers = NO_ADAPTERS,
    ) -> None:
        decoder = model.get_decoder()
        self._ops, self._ranks = ops, ranks
        self._embed = ops.embedding(decoder.embed_tokens)
        self._num_tokens = decoder.embed_tokens.num_embeddings
        self._rotary = decoder.rotary_emb
        self.is_capturable = self._rotary.rope_type not in _ROPES_THAT_READ_POSITIONS
        self._norm = _norm_of(decoder.norm)
        self._layers: list[LlamaLayer] = []
        for index, spec in enumerate(layout.layers):
            layer = LlamaLayer(
                decoder.layers[index],
                index,
                head_dim=spec.key_head_dim,
                window_tokens=spec.sliding_window_tokens,
                ops=ops,
                ranks=ranks,
                weight_dtype=weight_dtype,
                adapters=adapters,
            )
            decoder.layers[index] = torch.nn.Identity()  # lets go of its weights before the next layer doubles its own
            self._layers.append(layer)
        self._head = ops.linear([model.get_output_embeddings()])
        is_whole = ranks.size == 1
        self._decode_step = ops.decode_step([layer.parts for layer in self._layers], self._head) if is_whole else None

    def logits(self, batch: RowBatch) -> torch.Tensor:
        """Return the logits of the wanted rows: [num_logits, vocabulary_size]."""
        hidden = self._embed(batch.token_ids()[0])
        rotation = self._rotation(hidden, batch.positions())
        if self._decode_step is not None and self._decode_step.serves(batch):
            normalised = self._ops.normalise(self._decode_step(hidden, rotation, batch), self._norm)
        else:
            residual = Residual(hidden)
            for layer in self._layers[:-1]:
                residual = layer(residual, rotation, batch)
            _, normalised = self._layers[-1].last(residual, rotation, batch).normalised(self._ops, self._norm)
        logits = self._ranks.join(self._head(normalised))
        return logits[:, : self._num_tokens]

    def memory(self) -> list[MemoryRange]:
        """Return where the weights are that every pass reads, on a CPU."""
        products = (self._head, *(each for layer in self._layers for each in layer.parts.products))
        return [each.memory() for each in products if isinstance(each, Linear)]

    def _rotation(self, hidden: torch.Tensor, positions: torch.Tensor) -> Rotation:
        cosines, sines = self._rotary(hidden[None], positions)
        half = sines.shape[-1] // 2
        signed_sines = torch.cat([-sines[0, :, :half], sines[0, :, half:]], dim=-1)
        return Rotation(cosines[0, :, None], signed_sines[:, None])


class LlamaLayer:
    """A layer whose query, key and value projections are one product, and whose gate and up projections are another.

    Projections of `layer` are emptied, so that no weight is held twice. A query sees `window_tokens` positions, its own
    included; 0: all. `parts`: what it consists of.
    """

    def __init__(
        self,
        layer: Any,
        index: int,
        *,
        head_dim: int,
        window_tokens: int,
        ops: DeviceOps,
        ranks: Ranks,
        weight_dtype: WeightDtype = "auto",
        adapters: AdapterLayers = NO_ADAPTERS,
    ) -> None:
        attention = layer.self_attn
        self._ops, self._ranks = ops, ranks
        self._index, self._head_dim = index, head_dim
        self._qkv, self._output, self._gate_up, self._down = products = [
            AdaptedProduct({name: layer.get_submodule(name) for name in names}, index, ops, weight_dtype, adapters)
            for names in _PRODUCTS
        ]
        qkv, output, gate_up, down = (product.plain for product in products)
        has_head_norms = hasattr(attention, "q_norm")
        self.parts = LayerParts(
            norms=(_norm_of(layer.input_layernorm), _norm_of(layer.post_attention_layernorm)),
            head_norms=HeadNorms(_norm_of(attention.q_norm), _norm_of(attention.k_norm)) if has_head_norms else None,
            products=(qkv, output, gate_up, down),
            attention=AttentionParams(float(attention.scaling), window_tokens),
            num_query_heads=attention.q_proj.out_features // head_dim,
        )

    def __call__(self, residual: Residual, rotation: Rotation, batch: RowBatch) -> Residual:
        """Return the residual behind the layer."""
        hidden, query = self._project(residual, rotation, batch)
        attended = self._ops.attend(batch, batch.segments, self._index, query, self.parts.attention)
        return self._finish(hidden, attended, batch.adapted)

    def last(self, residual: Residual, rotation: Rotation, batch: RowBatch) -> Residual:
        """Return the rows whose logits are wanted; of the others only K and V are computed."""
        if batch.num_logits == batch.num_rows:
            return self(residual, rotation, batch)
        hidden, query = self._project(residual, rotation, batch)
        if not batch.last_segments:
            return Residual(hidden[:0])
        rows = batch.last_rows()
        attended = self._ops.attend(batch, batch.last_segments, self._index, query[:, rows], self.parts.attention)
        return self._finish(hidden[rows], attended, batch.last_adapted)

    def _project(self, residual: Residual, rotation: Rotation, batch: RowBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Write K and V into their blocks; return the hidden rows and the queries [num_query_heads, rows, head_dim]."""
        hidden, normalised = residual.normalised(self._ops, self.parts.norms[0])
        heads = self._qkv(normalised, batch.adapted).view(hidden.shape[0], -1, self._head_dim)
        return hidden, self._ops.rotate_and_store(heads, rotation, self.parts.head_norms, batch, self._index)

    def _finish(self, hidden: torch.Tensor, attended: torch.Tensor, adapted: Sequence[AdaptedRows]) -> Residual:
        rows = attended.transpose(0, 1).reshape(hidden.shape[0], -1)
        delta = self._ranks.sum(self._output(rows, adapted))
        hidden, normalised = self._ops.add_and_normalise(hidden, delta, self.parts.norms[1])
        activated = self._ops.gate(self._gate_up(normalised, adapted))
        return Residual(hidden, self._ranks.sum(self._down(activated, adapted)))


class AdaptedProduct:
    """Projections of the same input, outputs side by side, for rows with adapters and without.

    `modules` are by name (`baton.engine.checkpoint.lora.PROJECTIONS`), in order of their outputs. `plain`: the product
    without adapters.
    """

    def __init__(
        self,
        modules: Mapping[str, Any],
        layer: int,
        ops: DeviceOps,
        weight_dtype: WeightDtype = "auto",
        adapters: AdapterLayers = NO_ADAPTERS,
    ) -> None:
        self.plain = ops.projection(list(modules.values()), weight_dtype)
        self._additions = Additions(adapters, layer, {name: module.out_features for name, module in modules.items()})

    def __call__(self, rows: torch.Tensor, adapted: Sequence[AdaptedRows] = ()) -> torch.Tensor:
        """Return [num_rows, num_outputs] of [num_rows, num_inputs]; `adapted` says which rows have adapters."""
        output = self.plain(rows)
        if adapted:
            self._additions.add(output, rows, adapted)
        return output


def _norm_of(module: Any) -> Norm:
    """Return the normalisation of a transformers RMSNorm."""
    return Norm(module.weight, float(module.variance_epsilon))
