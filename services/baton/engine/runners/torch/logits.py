"""Logits on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baton.engine.runners.base import Array
from baton.engine.runners.torch.choice import most_probable


class TorchLogits:
    """Logits on the device: [num_rows, vocabulary_size]."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def argmax(self) -> list[int]:
        """Return the most probable token of each row (the smallest id among equals), `NOT_FINITE` where none is."""
        token_ids: list[int] = most_probable(self._logits).tolist()
        return token_ids

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return some rows, or all, on the host: [num_rows, vocabulary_size], float32."""
        logits = self._logits if indices is None else self._logits[list(indices)]
        rows: Array = logits.float().cpu().numpy()
        rows.flags.writeable = False
        return rows
