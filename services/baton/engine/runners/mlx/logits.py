"""Logits that stay on the device until somebody asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
import numpy as np

from baton.engine.runners.base import NOT_FINITE, Array


class MlxLogits:
    """Evaluated logits, [num_rows, vocabulary_size]."""

    def __init__(self, logits: mx.array) -> None:
        self._logits = logits

    def argmax(self) -> list[int]:
        """Return the most probable token of each row (the smallest id among equals), `NOT_FINITE` where none is."""
        if self._logits.shape[0] == 0:
            return []
        best = mx.argmax(self._logits, axis=-1).astype(mx.int32)
        is_finite = mx.isfinite(mx.max(self._logits, axis=-1))
        return cast(list[int], mx.where(is_finite, best, NOT_FINITE).tolist())

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return some rows, or all, on the host, float32."""
        logits = self._logits if indices is None else self._logits[mx.array(list(indices))]
        logits = logits.astype(mx.float32)
        mx.eval(logits)
        rows: Array = np.array(logits, copy=False)
        rows.flags.writeable = False
        return rows
