"""Logits that stay on the device until somebody asks for them."""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import numpy as np

from baton.engine.runners.base import Array


class MlxLogits:
    """Evaluated logits, [num_rows, vocabulary_size]."""

    def __init__(self, logits: mx.array) -> None:
        self._logits = logits

    def argmax(self) -> list[int]:
        """Return the most probable token of each row (the smallest id among equals)."""
        if self._logits.shape[0] == 0:
            return []
        return cast(list[int], mx.argmax(self._logits, axis=-1).tolist())

    def rows(self) -> Array:
        """Return all rows on the host, float32."""
        logits = self._logits.astype(mx.float32)
        mx.eval(logits)
        rows: Array = np.array(logits, copy=False)
        rows.flags.writeable = False
        return rows
