"""A pass in flight: its tokens are chosen on the device, so that the next pass may be fed before anybody reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import mlx.core as mx
import numpy as np

from baton.engine.runners.base import NOT_FINITE, Array, Span
from baton.engine.runners.drawing import Draws


def begin(*arrays: object) -> None:
    """Let the device compute arrays, in lists or not, and return meanwhile; MLX's stub of it has no types."""
    mx.async_eval(*arrays)  # type: ignore[no-untyped-call]


class MlxLogits:
    """Evaluated logits, [num_rows, vocabulary_size]."""

    def __init__(self, logits: mx.array) -> None:
        self._logits = logits

    def argmax(self) -> list[int]:
        """Return the most probable token of each row (the smallest id among equals), `NOT_FINITE` where none is."""
        return cast(list[int], _most_probable(self._logits).tolist())

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return some rows, or all, on the host, float32."""
        logits = self._logits if indices is None else self._logits[mx.array(list(indices))]
        logits = logits.astype(mx.float32)
        mx.eval(logits)
        rows: Array = np.array(logits, copy=False)
        rows.flags.writeable = False
        return rows


class MlxPass:
    """Logits [num_rows, vocabulary_size] and chosen tokens of a pass, on their way; `draws` as `Runner.launch` has."""

    def __init__(self, logits: mx.array, draws: Draws | None) -> None:
        self._logits = logits
        self.chosen = _most_probable(logits) if draws is None else _drawn(logits, draws)
        """[num_rows], int32, lazy."""
        begin(self.chosen, logits)

    def tokens(self, step: int = 0) -> list[int]:  # noqa: ARG002 - there is one
        """Return the token chosen from each row, `NOT_FINITE` where the highest logit is not a finite number."""
        return cast(list[int], self.chosen.tolist())

    def logits(self) -> MlxLogits:
        """Return the logits."""
        return MlxLogits(self._logits)

    def cut(self, num_steps: int) -> int:  # noqa: ARG002 - there is one
        """Return 1: a launch has one step."""
        return 1


def fed_tokens(spans: Sequence[Span], after: MlxPass | None) -> mx.array:
    """Return the tokens of spans of equal length, [num_spans, num_tokens], int32; those under way are lazy."""
    known = np.asarray([span.token_ids for span in spans], dtype=np.int32)
    follows = [span.follows_row for span in spans]
    if after is None or all(row is None for row in follows):
        return mx.array(known)
    rows = mx.array([0 if row is None else row for row in follows], dtype=mx.int32)
    chosen = mx.maximum(after.chosen[rows], 0)[:, None]
    is_under_way = mx.array([row is not None for row in follows])[:, None]
    return mx.where(is_under_way, chosen, mx.array(known))


def _most_probable(logits: mx.array) -> mx.array:
    """Return the smallest id among the highest of each row: [num_rows], int32."""
    if logits.shape[0] == 0:
        return mx.zeros(0, mx.int32)
    best = mx.argmax(logits, axis=-1).astype(mx.int32)
    return mx.where(mx.isfinite(mx.max(logits, axis=-1)), best, NOT_FINITE)


def _drawn(logits: mx.array, draws: Draws) -> mx.array:
    """Return the tokens of `drawing.draw_tokens`, [num_rows], int32; in float64, thus on the CPU."""
    best = _most_probable(logits)
    is_greedy = mx.array(draws.temperatures == 0.0)
    with mx.stream(mx.cpu):
        temperatures = mx.array(np.where(draws.temperatures == 0.0, 1.0, draws.temperatures), dtype=mx.float64)
        wide = logits.astype(mx.float64)
        weights = mx.exp((wide - mx.max(wide, axis=-1, keepdims=True)) / temperatures[:, None])
        weights = weights / mx.sum(weights, axis=-1, keepdims=True)
        cumulated = mx.cumsum(weights, axis=-1)
        draw = mx.array(draws.uniforms[0], dtype=mx.float64) * cumulated[:, -1]
        num_below = mx.sum(cumulated <= draw[:, None], axis=-1)
        last = wide.shape[-1] - 1 - mx.argmax((weights > 0)[:, ::-1], axis=-1)
        drawn = mx.minimum(num_below, last).astype(mx.int32)
        return mx.where(is_greedy | (best == NOT_FINITE), best, drawn)
