"""What turns a packed batch into logits: transformers' model code, or Baton's own."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch

from baton.engine.runners.torch.batch import RowBatch
from baton.engine.runners.torch.last_layer import LastLayerForward
from baton.engine.runners.torch.lora import NO_ADAPTERS, AdapterLayers, Additions
from baton.engine.runners.torch.ops.cpu.huge_pages import MemoryRange, memory_of


class Backbone(Protocol):
    """A model over packed spans; it writes K and V into the batch's pool on its way."""

    name: str
    """Whose code it is: "transformers" or "baton"."""
    is_capturable: bool
    """Whether a decode pass asks the device for nothing, so that a CUDA graph can hold all of it."""

    def logits(self, batch: RowBatch) -> torch.Tensor:
        """Return the logits of the wanted rows: [num_logits, vocabulary_size]."""

    def memory(self) -> list[MemoryRange]:
        """Return where the weights are that passes read, on a CPU."""


class TransformersModel:
    """A model in transformers' own code.

    Its attention is Baton's (`attention.attend`); the forward of its last layer is replaced by `LastLayerForward`, so
    that it returns a row of logits per wanted row.

    Args:
        model: A transformers causal language model, its attention `ATTENTION_NAME`; changed in place.
        adapters: All that are loaded.
    """

    name = "transformers"
    is_capturable = False  # experts are chosen by what the host reads, and rotary embeddings look at positions

    def __init__(self, model: Any, adapters: AdapterLayers = NO_ADAPTERS) -> None:
        layers = model.get_decoder().layers
        layers[-1].forward = LastLayerForward(layers[-1].forward)
        self._model = model
        self._batch: RowBatch | None = None
        for index, layer in enumerate(layers):
            for name in {name for each in adapters.values() for name in each[index]}:
                module = layer.get_submodule(name)
                additions = Additions(adapters, index, {name: module.out_features})
                module.register_forward_hook(partial(self._add, additions))

    def logits(self, batch: RowBatch) -> torch.Tensor:
        """Return the logits of the wanted rows: [num_logits, vocabulary_size]."""
        self._batch = batch
        output = self._model(
            input_ids=batch.token_ids(), position_ids=batch.positions(), use_cache=False, baton_batch=batch
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def memory(self) -> list[MemoryRange]:
        """Return where the weights are, on a CPU."""
        return [memory_of(weight) for weight in self._model.parameters()]

    def _add(
        self, additions: Additions, module: torch.nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor
    ) -> None:
        """Add to the output of a projection what adapters make of its input, [..., num_inputs]."""
        del module
        batch, rows = self._batch, inputs[0].flatten(0, -2)
        assert batch is not None, "a projection runs in passes alone"
        adapted = batch.adapted if len(rows) == batch.num_rows else batch.last_adapted
        additions.add(output.flatten(0, -2), rows, adapted)
