"""Computes a planned pass: the model, then tokens and log-probabilities from its logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from baton.engine.kv_exchange import export_cached
from baton.engine.runners.base import Array, Logits, Runner
from baton.engine.sampling import SampledToken, sample, with_logprobs
from baton.engine.sequence import Sequence
from baton.engine.step import Sampled, Scored, Step
from baton.errors import NonFiniteLogitsError


class PassResult(NamedTuple):
    """What a pass brought."""

    tokens: list[tuple[Sequence, SampledToken]]
    """A token per sequence that gets one, in order of arrival."""
    scores: list[tuple[Scored, list[SampledToken]]]
    """The prompt's tokens after the positions scored."""
    failures: list[tuple[Sequence, Exception]]
    """Sequences whose logits gave neither, and why; they are not among `tokens`."""

    @property
    def outcomes(self) -> list[object]:
        """Return what each sequence's logits gave: a token, or an error."""
        return [outcome for _, outcome in (*self.tokens, *self.failures)]


def compute(runner: Runner, step: Step) -> PassResult:
    """Run a pass, and hand out the cached KV of the sequences that join with it."""
    for sequence in step.admitted:
        export_cached(runner, sequence)
    if not step.spans:
        return PassResult([], [], [])
    logits = runner.forward(step.spans)
    for copy in step.copies:
        runner.copy_block(copy.source, copy.target)
    scores, failures = _score(logits, step.scored)
    failed = dict(failures)
    tokens = []
    for sequence, outcome in _sample(logits, step.sampled):
        if isinstance(outcome, Exception):
            failed.setdefault(sequence, outcome)
        elif sequence not in failed:
            tokens.append((sequence, outcome))
    return PassResult(tokens, scores, list(failed.items()))


class _ChosenRows:
    """Some rows of logits, in any order and any number of times: sequences of the same tokens share one."""

    def __init__(self, logits: Logits, rows: Seq[int]) -> None:
        self._logits = logits
        self._rows = rows

    def argmax(self) -> list[int]:
        """Return the most probable token of each row."""
        token_ids = self._logits.argmax()
        return [token_ids[row] for row in self._rows]

    def rows(self, indices: Seq[int] | None = None) -> Array:
        """Return some rows, or all, on the host: [num_rows, vocabulary_size], float32."""
        chosen = self._rows if indices is None else [self._rows[index] for index in indices]
        return self._logits.rows(chosen)


def _sample(logits: Logits, sampled: Seq[Sampled]) -> list[tuple[Sequence, SampledToken | Exception]]:
    if not sampled:
        return []
    chosen = _ChosenRows(logits, [entry.row for entry in sampled])
    outcomes = sample(chosen, [entry.sequence.sampling_context() for entry in sampled])
    return [(entry.sequence, outcome) for entry, outcome in zip(sampled, outcomes, strict=True)]


def _score(
    logits: Logits, scored: Seq[Scored]
) -> tuple[list[tuple[Scored, list[SampledToken]]], list[tuple[Sequence, Exception]]]:
    """Return how probable the model found each token of parts of prompts, and where it could not say."""
    scores: list[tuple[Scored, list[SampledToken]]] = []
    failures: list[tuple[Sequence, Exception]] = []
    for entry in scored:
        rows = logits.rows(range(entry.row, entry.row + entry.num_rows))
        try:
            scores.append((entry, _score_part(rows, entry)))
        except NonFiniteLogitsError as error:
            failures.append((entry.sequence, error))
    return scores, failures


def _score_part(rows: Array, scored: Scored) -> list[SampledToken]:
    first = scored.position + 1
    token_ids = scored.sequence.token_ids[first : first + scored.num_rows]
    num_alternatives = scored.sequence.request.params.num_prompt_logprobs or 0
    ranks = 1 + (rows > rows[np.arange(len(rows)), token_ids][:, None]).sum(axis=1)
    return [
        with_logprobs(row, token_id, num_alternatives)._replace(rank=int(rank))
        for row, token_id, rank in zip(rows, token_ids, ranks, strict=True)
    ]
