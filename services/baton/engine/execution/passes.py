"""A pass, or several in a row: how its tokens are chosen, begun on a runner, and what it brought."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from baton.engine.runners.base import NOT_FINITE, Launched, Logits, Runner
from baton.engine.runners.drawing import Draws
from baton.engine.sampling import ChosenRows, SampledToken, not_finite_error, sample, score, uniform
from baton.engine.scheduling.step import Sampled, Scored, Step
from baton.engine.sequence import Phase, Sequence
from baton.errors import NonFiniteLogitsError


class PassResult(NamedTuple):
    """What a pass brought."""

    sequences: list[Sequence]
    """Sequences that get a token, in order of arrival."""
    token_ids: list[int]
    """Their tokens."""
    scores: list[tuple[Scored, list[SampledToken]]]
    """The prompt's tokens after the positions scored."""
    failures: list[tuple[Sequence, Exception]]
    """Sequences whose logits gave neither, and why; they are not among `sequences`."""
    tokens: list[SampledToken] | None = None
    """The tokens with what was asked of them besides; None: nothing."""


class TokenChoice(Enum):
    """How the tokens of a pass are chosen."""

    GREEDY = auto()
    """The most probable one of each row."""
    DRAWN = auto()
    """By logits, temperatures and random numbers: neither filters nor history, no report."""
    ON_HOST = auto()
    """Row by row, on the host."""


class Pass(NamedTuple):
    """A pass, or several in a row, in flight."""

    step: Step
    launched: Launched | None
    """The runner's side of it; None: no position is computed."""
    choice: TokenChoice

    @property
    def is_plain(self) -> bool:
        """Return whether the runner itself chooses all tokens, so that the next pass need not wait for the host."""
        return self.choice is not TokenChoice.ON_HOST


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


def _draws_of(step: Step) -> Draws:
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


def _plain_result(step: Step, chosen: list[int]) -> PassResult:
    """Return what a pass brought to sequences that still live; `chosen`: the runner's tokens, one per row."""
    entries = [entry for entry in step.sampled if entry.sequence.phase is not Phase.FINISHED]
    tokens = [chosen[row] for _, row in entries]
    if NOT_FINITE not in tokens:
        return PassResult([sequence for sequence, _ in entries], tokens, [], [])
    sound = [(entry.sequence, token) for entry, token in zip(entries, tokens, strict=True) if token != NOT_FINITE]
    spoiled = [entry.sequence for entry, token in zip(entries, tokens, strict=True) if token == NOT_FINITE]
    return PassResult(
        [sequence for sequence, _ in sound],
        [token for _, token in sound],
        [],
        [(sequence, not_finite_error()) for sequence in spoiled],
    )


def _sampled_result(step: Step, logits: Logits) -> PassResult:
    """Return what a pass brought, its tokens sampled here."""
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


def _sample(logits: Logits, sampled: Seq[Sampled]) -> list[tuple[Sequence, SampledToken | Exception]]:
    if not sampled:
        return []
    chosen = ChosenRows(logits, [entry.row for entry in sampled])
    outcomes = sample(chosen, [entry.sequence.sampling_context() for entry in sampled])
    return [(entry.sequence, outcome) for entry, outcome in zip(sampled, outcomes, strict=True)]


def _score(
    logits: Logits, scored: Seq[Scored]
) -> tuple[list[tuple[Scored, list[SampledToken]]], list[tuple[Sequence, Exception]]]:
    """Return how probable the model found each token of parts of prompts, and where it could not say."""
    scores: list[tuple[Scored, list[SampledToken]]] = []
    failures: list[tuple[Sequence, Exception]] = []
    for entry in scored:
        sequence, first = entry.sequence, entry.position + 1
        rows = logits.rows(range(entry.row, entry.row + entry.num_rows))
        token_ids = sequence.token_ids[first : first + entry.num_rows]
        try:
            scores.append((entry, score(rows, token_ids, sequence.request.params.num_prompt_logprobs or 0)))
        except NonFiniteLogitsError as error:
            failures.append((sequence, error))
    return scores, failures


def launch(runner: Runner, step: Step, choice: TokenChoice, after: Pass | None = None) -> Pass:
    """Begin a pass."""
    if not step.spans:
        return Pass(step, None, TokenChoice.ON_HOST)
    launched = runner.launch(
        step.spans,
        draws=_draws_of(step) if choice is TokenChoice.DRAWN else None,
        after=after.launched if after is not None and step.is_following else None,
        num_steps=step.num_passes,
    )
    for copy in step.copies:
        runner.copy_block(copy.source, copy.target)
    return Pass(step, launched, choice)


def collect(computed: Pass) -> PassResult:
    """Wait for a pass, or for the next of several, and return what it brought to sequences that still live.

    The first of several passes fills all blocks that they gave to the prefix cache: those of tokens known before.
    """
    step, launched = computed.step, computed.launched
    if launched is None:
        result = PassResult([], [], [], [])
    elif computed.is_plain:
        result = _plain_result(step, launched.tokens(step.num_collected))
    else:
        result = _sampled_result(step, launched.logits())
    step.num_collected += 1
    return result
