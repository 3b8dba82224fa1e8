"""Chooses tokens from logits. Stateless: the randomness of a token depends on (seed, position) alone.

So the same request gives the same output in any batch, on any node, with any placement, and any node can sample any
position.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from baton.engine.constraints.constraint import Constraint, Mask
from baton.engine.request import SamplingParams
from baton.engine.runners.base import NOT_FINITE, Array, Logits
from baton.errors import InvalidFieldError, NonFiniteLogitsError

Array64 = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
"""Float64 values, one per token id."""

_RUN_POSITIONS = 64
"""Positions whose random numbers are made together."""


class Alternative(NamedTuple):
    """A token and its log-probability."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability, 0 or less."""


class SampledToken(NamedTuple):
    """A chosen token."""

    token_id: int
    logprob: float | None = None
    """Log-probability under the model, before edits and temperature; None if not asked for."""
    alternatives: tuple[Alternative, ...] = ()
    """Most probable tokens, most probable first."""
    rank: int = 0
    """Place among all tokens, 1 for the most probable; 0: not asked for. Told of a prompt's tokens only."""


class SamplingContext(NamedTuple):
    """What the choice for one row of logits depends on."""

    params: SamplingParams
    token_ids: Sequence[int]
    """Prompt and output so far; shared with the sequence, not copied."""
    num_prompt_tokens: int
    end_token_ids: frozenset[int]
    constraint: Constraint | None = None
    """Follows `params.structured_output`; None: the output may have any form."""

    @property
    def num_output_tokens(self) -> int:
        """Return the output tokens so far: the position of the one to choose."""
        return len(self.token_ids) - self.num_prompt_tokens

    def is_masked(self, token_id: int) -> bool:
        """Return whether a token is an end token that cannot be chosen yet."""
        return self.num_output_tokens < self.params.min_tokens and token_id in self.end_token_ids


class ChosenRows:
    """Some rows of logits, in any order and any number of times: sequences of the same tokens share one."""

    def __init__(self, logits: Logits, rows: Sequence[int]) -> None:
        self._logits, self._rows = logits, rows

    def argmax(self) -> list[int]:
        """Return the most probable token of each row."""
        token_ids = self._logits.argmax()
        return [token_ids[row] for row in self._rows]

    def rows(self, indices: Sequence[int] | None = None) -> Array:
        """Return some rows, or all, on the host: [num_rows, vocabulary_size], float32."""
        chosen = self._rows if indices is None else [self._rows[index] for index in indices]
        return self._logits.rows(chosen)


def sample(logits: Logits, contexts: Sequence[SamplingContext]) -> list[SampledToken | Exception]:
    """Return, for each row of logits, one token or why there is none.

    Greedy rows take the framework's argmax; only the others are copied to the host, and those whose argmax is an end
    token that cannot come yet: masking tokens that are not the most probable one changes no argmax.
    """
    needs_rows = [context.params.needs_rows for context in contexts]
    indices = [index for index, is_needed in enumerate(needs_rows) if is_needed]
    outcomes: list[SampledToken | Exception] = []
    if len(indices) < len(contexts):
        best = logits.argmax()
        outcomes += [not_finite_error() if token_id == NOT_FINITE else SampledToken(token_id) for token_id in best]
        indices = [
            index
            for index, context in enumerate(contexts)
            if needs_rows[index] or (context.params.min_tokens and context.is_masked(best[index]))
        ]
    if indices:
        outcomes = outcomes or [not_finite_error()] * len(contexts)
        for index, row in zip(indices, logits.rows(indices), strict=True):
            outcomes[index] = _outcome(row, contexts[index])
    return outcomes


def uniform(seed: int, position: int) -> float:
    """Return the random number of a position, in [0, 1): Philox keyed by the seed, with the position as counter."""
    return _uniforms(seed, position // _RUN_POSITIONS)[position % _RUN_POSITIONS]


@lru_cache(maxsize=4096)
def _uniforms(seed: int, run: int) -> list[float]:
    """Return the random numbers of consecutive positions: made together, each costs a fortieth."""
    philox = np.random.Philox(key=np.uint64(seed % 2**64), counter=[run * _RUN_POSITIONS, 0, 0, 0])
    words = philox.random_raw(4 * _RUN_POSITIONS)[::4]  # a counter's first word of four
    numbers: list[float] = ((words >> np.uint64(11)) * 2.0**-53).tolist()
    return numbers


def with_logprobs(row: Array, token_id: int, num_alternatives: int) -> SampledToken:
    """Return a token of a float32 row with log-probabilities; raise NonFiniteLogitsError if the highest is none."""
    wide = row.astype(np.float64)
    highest = wide.max()
    if not np.isfinite(highest):
        raise not_finite_error()
    logprobs = wide - (highest + np.log(np.exp(wide - highest).sum()))
    best = np.argsort(-wide, kind="stable")[:num_alternatives]  # of the logits: logprobs are rounded together
    alternatives = tuple(Alternative(int(token), float(logprobs[token])) for token in best)
    return SampledToken(token_id, float(logprobs[token_id]), alternatives)


def score(rows: Array, token_ids: Sequence[int], num_alternatives: int) -> list[SampledToken]:
    """Return how probable the model found each of some tokens, with its rank.

    `rows`: logits before each token, [len(token_ids), vocabulary_size], float32. `token_ids`: the tokens.
    `num_alternatives`: most probable tokens told of each. Raises NonFiniteLogitsError if the highest value of a row is
    not a finite number.
    """
    ranks = 1 + (rows > rows[np.arange(len(rows)), token_ids][:, None]).sum(axis=1)
    return [
        with_logprobs(row, token_id, num_alternatives)._replace(rank=int(rank))
        for row, token_id, rank in zip(rows, token_ids, ranks, strict=True)
    ]


def _outcome(row: Array, context: SamplingContext) -> SampledToken | Exception:
    try:
        return _sample_row(row, context)
    except Exception as error:  # the edge of one request's work: its neighbours in the batch are sound
        return error


def not_finite_error() -> NonFiniteLogitsError:
    """Return what is wrong with logits whose highest is not a finite number."""
    return NonFiniteLogitsError("the model's logits are not finite: weights, number format or device are at fault")


def _sample_row(row: Array, context: SamplingContext) -> SampledToken:
    if not np.isfinite(row.max()):  # the highest of values among which one is NaN is NaN
        raise not_finite_error()
    params = context.params
    edited = _edit(row, context) if params.min_tokens or params.shifts_logits else row
    if context.constraint is not None:
        edited = np.where(_allowed(context.constraint, context, len(row)), edited, -np.inf)
    if edited is not row and not np.isfinite(edited.max()):
        if params.bad_words:
            problem = f"without them no token can follow the first {context.num_output_tokens} of the output"
            raise InvalidFieldError("bad_words", problem)
        raise NonFiniteLogitsError("every token that may come next has no probability at all")
    if params.is_greedy:
        token_id = int(edited.argmax())
    else:
        probabilities = _filter(_scale(edited, params.temperature), params)
        token_id = _draw(probabilities, uniform(params.seed, context.num_output_tokens))
    if params.num_top_logprobs is None:
        return SampledToken(token_id)
    return with_logprobs(row, token_id, params.num_top_logprobs)


def _edit(row: Array, context: SamplingContext) -> Array:
    """Apply end-token mask, bias, penalties and bad words, in the order that generation.proto documents."""
    params, edited = context.params, row.copy()
    if context.constraint is None and context.num_output_tokens < params.min_tokens and context.end_token_ids:
        edited[list(context.end_token_ids)] = -np.inf
    for token_id, bias in params.logit_bias.items():
        edited[token_id] += bias
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(context.token_ids, dtype=np.int64))
        values = edited[seen]
        edited[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    output_token_ids = context.token_ids[context.num_prompt_tokens :]
    if (params.presence_penalty or params.frequency_penalty) and output_token_ids:
        tokens, counts = np.unique(np.asarray(output_token_ids, dtype=np.int64), return_counts=True)
        edited[tokens] -= (params.presence_penalty + params.frequency_penalty * counts).astype(np.float32)
    for *beginning, last in params.bad_words:
        num_before = len(output_token_ids) - len(beginning)
        if num_before >= 0 and list(output_token_ids[num_before:]) == beginning:
            edited[last] = -np.inf
    return edited


def _allowed(constraint: Constraint, context: SamplingContext, num_tokens: int) -> Mask:
    """Return which tokens the constraint allows; before the minimum no ends among them, unless nothing else is."""
    constraint.follow(context.token_ids, context.num_prompt_tokens)
    allowed = constraint.allowed(num_tokens, context.end_token_ids)
    if context.num_output_tokens < context.params.min_tokens and context.end_token_ids:
        without_ends = allowed.copy()
        without_ends[list(context.end_token_ids)] = False
        if without_ends.any():
            return without_ends
    return allowed


def _scale(row: Array, temperature: float) -> Array64:
    """Return logits divided by the temperature, the highest at 0: however low the temperature, it stays finite."""
    wide = row.astype(np.float64)
    with np.errstate(over="ignore"):  # the others may become -inf: their probability is 0
        scaled: Array64 = (wide - wide.max()) / temperature
    return scaled


def _filter(scaled: Array64, params: SamplingParams) -> Array64:
    """Return probabilities with everything outside top-k, top-p and min-p set to 0, not normalised again."""
    if 0 < params.top_k < len(scaled):
        scaled = np.where(_is_among_highest(scaled, params.top_k), scaled, -np.inf)
    probabilities = np.exp(scaled)
    probabilities /= probabilities.sum()
    if params.top_p < 1.0:
        cumulated = np.cumsum(np.sort(probabilities)[::-1])
        num_kept = int(np.searchsorted(cumulated, params.top_p)) + 1
        probabilities[~_is_among_highest(probabilities, num_kept)] = 0.0
    if params.min_p > 0.0:
        probabilities[probabilities < params.min_p * probabilities.max()] = 0.0
    return probabilities


def _is_among_highest(values: Array64, count: int) -> Mask:
    """Return which values are the `count` highest; equals are taken in order of token id. O(len(values))."""
    count = min(count, len(values))
    threshold = np.partition(values, -count)[-count]
    is_kept: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = values > threshold
    is_kept[np.flatnonzero(values == threshold)[: count - int(is_kept.sum())]] = True
    return is_kept


def _draw(probabilities: Array64, draw: float) -> int:
    """Return the token at which the cumulated probability passes the draw.

    The sum runs in order of token ids, not of probability: two engines whose logits differ in the last bit would order
    near-equal tokens differently, and the draw would land on another token.
    """
    cumulated = np.cumsum(probabilities)
    token_id = int(np.searchsorted(cumulated, draw * cumulated[-1], side="right"))
    return min(token_id, int(np.flatnonzero(probabilities)[-1]))
