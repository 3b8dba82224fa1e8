"""Tokens drawn for a whole batch, beside those drawn row by row."""

from __future__ import annotations

import numpy as np
import pytest

from baton.engine.request import SamplingParams
from baton.engine.runners.base import NOT_FINITE, ComputedPass, Span, with_known_tokens
from baton.engine.runners.drawing import Draws, draw_tokens
from baton.engine.runners.mock.passes import MockLogits
from baton.engine.sampling import SamplingContext, sample, uniform


@pytest.mark.parametrize(("num_rows", "vocabulary_size"), [(1, 2), (40, 500), (9, 50_000)])
def test_a_batch_draws_what_each_row_draws_alone(num_rows: int, vocabulary_size: int) -> None:
    """Token for token, at any temperature, greedy ones among them."""
    random = np.random.default_rng(num_rows)
    rows = random.normal(scale=4.0, size=(num_rows, vocabulary_size)).astype(np.float32)
    rows[0, 1:] = -np.inf
    temperatures = random.choice([0.0, 1e-9, 0.3, 1.0, 3.0], num_rows)
    seeds = random.integers(-(2**63), 2**63 - 1, num_rows).tolist()

    draws = Draws(temperatures, np.asarray([[uniform(seed, 3) for seed in seeds]]))
    together = draw_tokens(rows, draws)

    alone = [
        sample(
            RowsOnly(rows[index : index + 1]),
            [
                SamplingContext(
                    SamplingParams(temperature=float(temperatures[index]), seed=seeds[index]),
                    [1] * 5,
                    2,
                    frozenset(),
                )
            ],
        )
        for index in range(num_rows)
    ]
    assert together == [tokens[0].token_id for tokens in alone]  # type: ignore[union-attr]


class RowsOnly:
    """Logits on the host."""

    def __init__(self, rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        self._rows = rows

    def argmax(self) -> list[int]:
        """Return the most probable token of each row."""
        best: list[int] = self._rows.argmax(axis=1).tolist()
        return best

    def rows(self, indices: object = None) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return all."""
        return self._rows


def test_rows_that_are_not_finite_give_no_token() -> None:
    """NaN or infinite at the top; minus infinity elsewhere is only impossible."""
    rows = np.zeros((4, 6), dtype=np.float32)
    rows[0, 3], rows[1, 2], rows[2, :] = np.nan, np.inf, -np.inf

    tokens = draw_tokens(rows, Draws(np.asarray([1.0, 0.0, 1.0, 1.0]), np.full((1, 4), 0.99)))

    assert tokens == [NOT_FINITE, NOT_FINITE, NOT_FINITE, 5]


def test_a_span_gets_the_token_that_the_pass_before_chose() -> None:
    """One that chose none stands for token 0: whatever follows it is thrown away."""
    before = ComputedPass(MockLogits([NOT_FINITE, 8], 20), None)
    spans = [Span([4], 0, [0], True), Span([-1], 5, [0], True, follows_row=1), Span([-1], 5, [0], True, follows_row=0)]

    assert [span.token_ids for span in with_known_tokens(spans, before.tokens())] == [[4], (8,), (0,)]
