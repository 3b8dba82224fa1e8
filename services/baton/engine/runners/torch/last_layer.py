"""Computes the last layer for the positions whose logits are wanted, and for no other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from baton.engine.runners.torch.batch import RowBatch
from baton.engine.runners.torch.ops.eager.attention import KvStored, Stage

LayerForward = Callable[..., Any]
"""`forward` of a transformers decoder layer."""


class LastLayerForward:
    """Takes the place of `forward` of a model's last decoder layer.

    All positions pass through the layer up to its attention, which writes their K and V; only those whose logits are
    wanted, mostly the last one of a span, pass through attention and MLP. The layer then returns fewer rows than it was
    given: one per row of logits.
    """

    def __init__(self, forward: LayerForward) -> None:
        self._forward = forward

    def __call__(
        self,
        hidden_states: torch.Tensor,
        *,
        position_ids: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        baton_batch: RowBatch,
        **kwargs: Any,
    ) -> Any:
        """Run the layer; arguments as transformers' decoder layers have them.

        Returns:
            [1, num_logits, hidden_size].
        """

        def run(rows: torch.Tensor | slice, stage: Stage) -> Any:
            cosines, sines = position_embeddings
            return self._forward(
                hidden_states[:, rows],
                position_ids=position_ids[:, rows],
                position_embeddings=(cosines[:, rows], sines[:, rows]),
                baton_batch=baton_batch,
                baton_stage=stage,
                **kwargs,
            )

        if baton_batch.num_logits == baton_batch.num_rows:
            return run(slice(None), Stage.ALL_ROWS)
        with suppress(KvStored):
            run(slice(None), Stage.STORE)
        if not baton_batch.last_segments:
            return hidden_states[:, :0]
        return run(baton_batch.last_rows(), Stage.LAST_ROWS)
