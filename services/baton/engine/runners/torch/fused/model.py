"""The forward pass of a dense Llama-like model over packed spans."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import embedding

from baton.engine.runners.torch.batch import Batch, PackedBatch
from baton.engine.runners.torch.fused.layer import FusedLayer, Rotation, norm_of
from baton.engine.runners.torch.fused.linear import Linear
from baton.engine.runners.torch.fused.quantised import WeightDtype
from baton.engine.runners.torch.fused.streamed import streamed_layers
from baton.engine.runners.torch.huge_pages import Memory
from baton.engine.runners.torch.lora import NO_ADAPTERS, AdapterLayers
from baton.engine.runners.torch.parallel.ranks import Alone, Ranks
from baton.kv.layout import KvLayout

_ROPES_THAT_READ_POSITIONS = ("dynamic", "longrope")
"""Kinds of rotary embedding whose frequencies depend on the longest position of a pass."""

_ALONE = Alone()


class FusedModel:
    """A model in Baton's own code, with the weights and the rotary embedding of transformers' model.

    Args:
        model: transformers' model, which `support.is_fusible` has accepted; taken apart, of no use afterwards.
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
        self._layers: list[FusedLayer] = []
        for index, spec in enumerate(layout.layers):
            fused = FusedLayer(
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

    def logits(self, batch: Batch) -> torch.Tensor:
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

    def memory(self) -> list[Memory]:
        """Return where the weights are that every pass reads, on a CPU."""
        return [self._head.memory(), *(memory for layer in self._layers for memory in layer.memory())]

    def _rotation(self, hidden: torch.Tensor, positions: torch.Tensor) -> Rotation:
        cosines, sines = self._rotary(hidden[None], positions)
        half = sines.shape[-1] // 2
        signed_sines = torch.cat([-sines[0, :, :half], sines[0, :, half:]], dim=-1)
        return Rotation(cosines[0, :, None], signed_sines[:, None])
