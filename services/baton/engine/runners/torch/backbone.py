"""What turns a packed batch into logits: transformers' model code, or Baton's own."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from baton.engine.runners.torch.batch import Batch
from baton.engine.runners.torch.last_layer import LastLayerForward


class Backbone(Protocol):
    """A model over packed spans; it writes K and V into the batch's pool on its way."""

    name: str
    """Whose code it is: "transformers" or "baton"."""
    is_capturable: bool
    """Whether a decode pass asks the device for nothing, so that a CUDA graph can hold all of it."""

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the wanted rows: [num_logits, vocabulary_size]."""


class TransformersModel:
    """A model in transformers' own code.

    Its attention is Baton's (`attention.attend`); the forward of its last layer is replaced by `LastLayerForward`, so
    that it returns a row of logits per wanted row.

    Args:
        model: A transformers causal language model, its attention `ATTENTION_NAME`; changed in place.
    """

    name = "transformers"
    is_capturable = False  # experts are chosen by what the host reads, and rotary embeddings look at positions

    def __init__(self, model: Any) -> None:
        last_layer = model.get_decoder().layers[-1]
        last_layer.forward = LastLayerForward(last_layer.forward)
        self._model = model

    def logits(self, batch: Batch) -> torch.Tensor:
        """Return the logits of the wanted rows: [num_logits, vocabulary_size]."""
        output = self._model(
            input_ids=batch.token_ids(), position_ids=batch.positions(), use_cache=False, baton_batch=batch
        )
        logits: torch.Tensor = output.logits[0]
        return logits
