"""Chooses a token from each row of logits on the device: the tokens that `drawing.draw_tokens` chooses on the host.

Logits on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baton.engine.runners.base import NOT_FINITE, Array


def most_probable(logits: torch.Tensor) -> torch.Tensor:
    """Return the most probable token of each row, the smallest id among equals: [num_rows], int64.

    `NOT_FINITE` where the highest logit is not a finite number; NaN counts as the highest.
    """
    if logits.device.type == "cpu" and logits.dtype is not torch.float32:  # twice as quick there in half precision
        highest, best = logits.max(dim=-1)
    else:
        best = logits.argmax(dim=-1, keepdim=True)
        highest, best = logits.gather(-1, best).squeeze(-1), best.squeeze(-1)
    return torch.where(highest.isfinite(), best, NOT_FINITE)


def drawn(logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return the token at which the cumulated probability of each row passes its random number: [num_rows], int64.

    Sums run in order of token ids, in float64, as on the host: other rounding in the logits moves the draw to a
    neighbour no more often than it moves the probability.

    Args:
        logits: [num_rows, vocabulary_size].
        temperatures: [num_rows], float64; 0: the most probable token.
        uniforms: [num_rows], float64, in [0, 1).
    """
    best = most_probable(logits)
    wide = logits.double()
    wide = (wide - wide.amax(dim=-1, keepdim=True)) / torch.where(temperatures == 0, 1.0, temperatures)[:, None]
    cumulated = (wide.exp_() / wide.sum(dim=-1, keepdim=True)).cumsum(dim=-1)
    num_below = (cumulated <= (uniforms * cumulated[:, -1])[:, None]).sum(dim=-1)
    last = wide.shape[-1] - 1 - (wide.flip(-1) > 0).int().argmax(dim=-1)
    return torch.where((temperatures == 0) | (best == NOT_FINITE), best, num_below.minimum(last))


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
