"""Computes a planned pass: the model, then tokens and log-probabilities, chosen by the runner where it can do that."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from baton.engine.request import EXPORT_TOKENS
from baton.engine.runners.base import NOT_FINITE, Array, ComputedPass, Launched, Logits, Runner
from baton.engine.runners.drawing import Draws
from baton.engine.sampling import SampledToken, not_finite_error, sample, uniform, with_logprobs
from baton.engine.scheduling.step import Sampled, Scored, Step
from baton.engine.sequence import Phase, Sequence
from baton.errors import NonFiniteLogitsError


class TokenChoice(Enum):
    """How the tokens of a pass are chosen."""

    GREEDY = auto()
    """The most probable one of each row."""
    DRAWN = auto()
    """By logits, temperatures and random numbers: neither filters nor history, no report."""
    ON_HOST = auto()
    """Row by row, on the host."""


def token_choice_of(step: Step) -> TokenChoice:
    """Return how the tokens of a planned pass are chosen. Duplicates may want different tokens of one row."""
    if step.scored or step.has_sinks:
        return TokenChoice.ON_HOST
    is_greedy = True
    for sequence, _ in step.sampled:
        params = sequence.request.params
        if not params.is_plain:
            return TokenChoice.ON_HOST
        if params.min_tokens and sequence.num_output_tokens + sequence.num_ahead < params.min_tokens:
            return TokenChoice.ON_HOST
        is_greedy = is_greedy and params.temperature == 0.0
    if is_greedy:
        return TokenChoice.GREEDY
    return TokenChoice.ON_HOST if step.duplicates else TokenChoice.DRAWN


def draws_of(step: Step) -> Draws:
    """Return what the rows of a pass, or of several in a row, are drawn with."""
    temperatures = np.zeros(step.num_rows)
    uniforms = np.zeros((step.num_passes, step.num_rows))
    for sequence, row in step.sampled:
        params = sequence.request.params
        if params.temperature:
            temperatures[row] = params.temperature
            position = sequence.num_output_tokens + sequence.num_ahead
            for index in range(step.num_passes):
                uniforms[index, row] = uniform(params.seed, position + index)
    return Draws(temperatures, uniforms)


class _NoLogits:
    """Logits of a pass that computes nothing."""

    def argmax(self) -> list[int]:
        """Return nothing."""
        return []

    def rows(self, indices: Seq[int] | None = None) -> Array:  # noqa: ARG002 - there are none
        """Return nothing."""
        return np.zeros((0, 1), dtype=np.float32)


class PassResult(NamedTuple):
    """What a pass brought."""

    sequences: list[Sequence]
    """Those that get a token, in order of arrival."""
    token_ids: list[int]
    """Their tokens."""
    scores: list[tuple[Scored, list[SampledToken]]]
    """The prompt's tokens after the positions scored."""
    failures: list[tuple[Sequence, Exception]]
    """Sequences whose logits gave neither, and why; they are not among `sequences`."""
    tokens: list[SampledToken] | None = None
    """The tokens with what was asked of them besides; None: nothing."""

    @property
    def outcomes(self) -> list[object]:
        """Return what each sequence's logits gave: a token, or an error."""
        return [*self.token_ids, *(error for _, error in self.failures)]


class Pass(NamedTuple):
    """A pass, or several in a row, under way."""

    step: Step
    """What was planned."""
    launched: Launched
    """What the runner says of it."""
    choice: TokenChoice
    """How its tokens are chosen."""

    @property
    def is_plain(self) -> bool:
        """Return whether the runner itself chooses all tokens, so that the next pass need not wait for the host."""
        return self.choice is not TokenChoice.ON_HOST


def launch(runner: Runner, step: Step, choice: TokenChoice, after: Pass | None = None) -> Pass:
    """Begin a pass, and hand out the cached KV of the sequences that join with it.

    Args:
        runner: What computes.
        step: What it computes.
        choice: How its tokens are chosen.
        after: The pass launched before, if it is under way.
    """
    for sequence in step.admitted:
        export_cached(runner, sequence)
    if not step.spans:
        return Pass(step, _NOTHING, TokenChoice.ON_HOST)
    launched = runner.launch(
        step.spans,
        draws=draws_of(step) if choice is TokenChoice.DRAWN else None,
        after=after.launched if after is not None and step.is_following else None,
        num_steps=step.num_passes,
    )
    for copy in step.copies:
        runner.copy_block(copy.source, copy.target)
    return Pass(step, launched, choice)


def export_cached(runner: Runner, sequence: Sequence) -> None:
    """Hand out the KV that is in the prefix cache and that the caller lacks: [token_begin, num_computed)."""
    export = sequence.request.export
    if export is None:
        return
    for start in range(export.token_begin, sequence.num_computed, EXPORT_TOKENS):
        num_tokens = min(EXPORT_TOKENS, sequence.num_computed - start)
        for layer in range(runner.info.layout.num_layers):
            export.sink(start, layer, runner.read_kv(sequence.block_table, layer, start, num_tokens))


def collect(computed: Pass, index: int = 0) -> PassResult:
    """Wait for a pass, or for one of several, and return what it brought to sequences that still live.

    The first of several fills every block that they have in the prefix cache: those of the tokens known before.
    """
    step, launched = computed.step, computed.launched
    is_plain = computed.is_plain
    result = _plain_result(step, launched.tokens(index)) if is_plain else _result(step, launched.logits())
    step.is_computed = True
    return result


def _result(step: Step, logits: Logits) -> PassResult:
    scores, failures = _score(logits, step.scored)
    failed = dict(failures)
    sequences, tokens = list[Sequence](), list[SampledToken]()
    for sequence, outcome in _sample(logits, step.sampled):
        if isinstance(outcome, Exception):
            failed.setdefault(sequence, outcome)
        elif sequence not in failed:
            sequences.append(sequence)
            tokens.append(outcome)
    return PassResult(sequences, [token.token_id for token in tokens], scores, list(failed.items()), tokens)


def _plain_result(step: Step, chosen: list[int]) -> PassResult:
    living = [entry for entry in step.sampled if entry.sequence.phase is not Phase.FINISHED]
    tokens = [chosen[row] for _, row in living]
    if NOT_FINITE not in tokens:
        return PassResult([sequence for sequence, _ in living], tokens, [], [])
    sound = [(entry.sequence, token) for entry, token in zip(living, tokens, strict=True) if token != NOT_FINITE]
    spoiled = [entry.sequence for entry, token in zip(living, tokens, strict=True) if token == NOT_FINITE]
    return PassResult(
        [sequence for sequence, _ in sound],
        [token for _, token in sound],
        [],
        [(sequence, not_finite_error()) for sequence in spoiled],
    )


_NOTHING = ComputedPass(_NoLogits(), None)
"""What is launched where no position is computed."""


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
