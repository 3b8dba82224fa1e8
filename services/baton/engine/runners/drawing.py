"""Draws a token from every row of logits at once, by temperature alone: what needs neither filters nor history."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
"""A float32 array."""

Array64 = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
"""A float64 array."""

NOT_FINITE = -1
"""Stands for the chosen token of a row whose highest logit is not a finite number."""

_CHUNK_ELEMENTS = 1 << 18
"""Logits drawn from at once: few enough to stay in a core's cache."""


class Draws(NamedTuple):
    """How a token is chosen from each row of logits, without filters, edits or reports."""

    temperatures: Array64
    """[num_rows]; 0: the most probable token."""
    uniforms: Array64
    """[num_steps, num_rows], in [0, 1): the random number of each token."""


def draw_tokens(rows: Array, draws: Draws, step: int = 0) -> list[int]:
    """Return the token of each row at which the cumulated probability passes its random number.

    The sum runs in order of token ids, in float64: `sampling.sample` chooses the same token from the same row. `rows`
    is [num_rows, vocabulary_size].
    """
    num_rows = max(1, _CHUNK_ELEMENTS // rows.shape[1])
    token_ids: list[int] = []
    for first in range(0, len(rows), num_rows):
        part = slice(first, first + num_rows)
        token_ids += _draw_chunk(rows[part], draws.temperatures[part], draws.uniforms[step, part])
    return token_ids


def _draw_chunk(rows: Array, temperatures: Array64, uniforms: Array64) -> list[int]:
    wide = rows.astype(np.float64)
    best = wide.argmax(axis=1)
    highest = np.take_along_axis(wide, best[:, None], axis=1)  # NaN counts as the highest
    is_finite, is_greedy = np.isfinite(highest[:, 0]), temperatures == 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # -inf is probability 0; rows that are not finite are dropped
        wide -= highest
        wide /= np.where(is_greedy, 1.0, temperatures)[:, None]
        np.exp(wide, out=wide)
        wide /= wide.sum(axis=1, keepdims=True)
        last = wide.shape[1] - 1 - (wide[:, ::-1] > 0.0).argmax(axis=1)
        cumulated = np.cumsum(wide, axis=1, out=wide)
        num_below = (cumulated <= (uniforms * cumulated[:, -1])[:, None]).sum(axis=1)
    drawn = np.where(is_greedy, best, np.minimum(num_below, last))
    token_ids: list[int] = np.where(is_finite, drawn, NOT_FINITE).tolist()
    return token_ids
