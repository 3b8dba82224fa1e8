"""What a mock's passes give: tokens that are known when the pass's time is over, and logits that name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from baton.engine.runners.base import Array
from baton.engine.runners.drawing import Draws, draw_tokens


class MockLogits:
    """Logits that put nearly all probability on one token per row."""

    def __init__(self, tokens: list[int], vocabulary_size: int) -> None:
        self._tokens, self._vocabulary_size = tokens, vocabulary_size

    def argmax(self) -> list[int]:
        """Return the tokens."""
        return self._tokens

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return [num_rows, vocabulary_size] with 100 at each row's token and 0 elsewhere."""
        tokens = self._tokens if indices is None else [self._tokens[index] for index in indices]
        rows = np.zeros((len(tokens), self._vocabulary_size), dtype=np.float32)
        rows[np.arange(len(tokens)), tokens] = 100.0
        return rows


class MockPass:
    """Passes in a row on a mock device: their tokens are known when their time is over, on the runner's clock.

    `cut` takes steps from the end of the device's queue, as far as they have not begun, and returns how many stay.
    """

    def __init__(
        self,
        tokens: list[list[int]],
        ends: list[float],
        vocabulary_size: int,
        wait_until: Callable[[float], None],
        cut: Callable[[MockPass, int], int],
    ) -> None:
        self.chosen = tokens
        self.ends, self._vocabulary_size = ends, vocabulary_size
        self._wait_until, self._cut = wait_until, cut

    def tokens(self, step: int = 0) -> list[int]:
        """Return the tokens of a step when it is over."""
        self._wait_until(self.ends[step])
        return self.chosen[step]

    def logits(self) -> MockLogits:
        """Return the logits of the only step."""
        self._wait_until(self.ends[0])
        return MockLogits(self.chosen[0], self._vocabulary_size)

    def cut(self, num_steps: int) -> int:
        """Drop the steps after some, but for those that have begun."""
        return self._cut(self, num_steps)


def chosen_tokens(logits: MockLogits, draws: Draws | None, step: int) -> list[int]:
    """Return the tokens that are chosen from the logits of a step."""
    if draws is None or draws.temperatures.max() <= 1.0:  # no draw passes by a logit that is 100 above the others
        return logits.argmax()
    return draw_tokens(logits.rows(), draws, step)
