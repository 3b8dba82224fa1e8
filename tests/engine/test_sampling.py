"""Choosing tokens from logits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.constraints.compilation import ConstraintCompiler
from baton.engine.constraints.constraint import Constraint
from baton.engine.request import SamplingParams, StructuredOutput
from baton.engine.runners.base import NOT_FINITE
from baton.engine.sampling import SampledToken, SamplingContext, sample, uniform
from baton.errors import ConstraintError, InvalidFieldError, NonFiniteLogitsError
from engine.tokens import EOS as END
from engine.tokens import VOCABULARY_SIZE as BYTES
from engine.tokens import text_of, tokenizer_text, tokens_of

NUM_TOKENS = 12
RANDOM = np.random.default_rng(5)
ROW = RANDOM.normal(size=NUM_TOKENS).astype(np.float32) * 2


class Rows:
    """Logits on the host."""

    def __init__(self, *rows: Sequence[float]) -> None:
        self._rows = np.asarray(rows, dtype=np.float32)
        self._rows.setflags(write=False)

    def argmax(self) -> list[int]:
        """Return the best token of each row."""
        is_finite = np.isfinite(self._rows.max(-1))
        return [int(token) for token in np.where(is_finite, self._rows.argmax(-1), NOT_FINITE)]

    def rows(self, indices: Sequence[int] | None = None) -> Any:
        """Return rows, which nobody may write into."""
        rows = self._rows if indices is None else self._rows[list(indices)]
        rows.setflags(write=False)
        return rows


def context(
    params: SamplingParams, prompt: Sequence[int] = (0,), output: Sequence[int] = (), ends: frozenset[int] = frozenset()
) -> SamplingContext:
    """Return what one choice depends on."""
    return SamplingContext(params, [*prompt, *output], len(prompt), ends)


def choose(row: Sequence[float], params: SamplingParams, **what: Any) -> SampledToken:
    """Return the token chosen from one row."""
    (token,) = sample(Rows(row), [context(params, **what)])
    assert isinstance(token, SampledToken), token
    return token


def chosen_set(row: Sequence[float], num_draws: int = 150, **params: Any) -> set[int]:
    """Return every token that many seeds choose."""
    return {choose(row, SamplingParams(seed=seed, **params)).token_id for seed in range(num_draws)}


def softmax(row: Sequence[float], temperature: float = 1.0) -> Any:
    """Return the probabilities of logits."""
    scaled = np.asarray(row, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def greedy(**params: Any) -> SamplingParams:
    """Return greedy parameters."""
    return SamplingParams(temperature=0.0, **params)


LOGIT_ROWS = st.lists(st.floats(-50, 50, width=32), min_size=2, max_size=30)


@given(LOGIT_ROWS)
def test_greedy_takes_the_most_probable_token(row: list[float]) -> None:
    """The smallest id among equals, with and without a copy of the row."""
    best = row.index(max(row))

    assert choose(row, greedy()).token_id == best
    assert choose(row, greedy(num_top_logprobs=0)).token_id == best


@given(LOGIT_ROWS, st.integers(0, 1000), st.integers(1, 40))
def test_top_k_chooses_among_the_k_most_probable_tokens(row: list[float], seed: int, top_k: int) -> None:
    """Equals are kept in order of id, so that the set never grows beyond k."""
    best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:top_k]

    assert choose(row, SamplingParams(seed=seed, top_k=top_k)).token_id in best


def test_top_k_of_one_is_greedy_among_equals() -> None:
    """Two best tokens: the one with the smaller id, whatever the seed."""
    assert chosen_set([1.0, 3.0, 3.0, 2.0], num_draws=50, top_k=1) == {1}


@pytest.mark.parametrize(
    ("top_p", "tokens"), [(0.4, {0}), (0.5, {0}), (0.6, {0, 1}), (0.75, {0, 1}), (0.8, {0, 1, 2}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_chooses_among_the_smallest_set_that_is_probable_enough(top_p: float, tokens: set[int]) -> None:
    """Probabilities 1/2, 1/4, 1/8, 1/8; a bound that is just met needs no further token."""
    row = [8 * math.log(2), 7 * math.log(2), 6 * math.log(2), 6 * math.log(2)]

    chosen = chosen_set(row, top_p=top_p - 1e-6)

    assert chosen == tokens


def test_top_p_cuts_between_equals() -> None:
    """Of ten equal tokens, half of the probability is five tokens."""
    assert chosen_set([0.0] * 10, top_p=0.45) == {0, 1, 2, 3, 4}


def test_min_p_drops_tokens_below_a_share_of_the_best() -> None:
    """A quarter of 1/2 is 1/8: what has it stays."""
    row = np.log([0.5, 0.24, 0.13, 0.12, 0.01])

    assert chosen_set(row, min_p=0.25) == {0, 1, 2}


def test_filters_apply_after_temperature() -> None:
    """A flat distribution leaves more tokens in the same top_p."""
    row = np.log([0.9, 0.05, 0.03, 0.02])

    assert chosen_set(row, top_p=0.8) == {0}
    assert chosen_set(row, top_p=0.8, temperature=20.0) == {0, 1, 2, 3}


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-4])
def test_a_very_low_temperature_is_greedy(temperature: float) -> None:
    """Without overflow: divided logits may not become infinite."""
    assert chosen_set(ROW * 1000, num_draws=20, temperature=temperature) == {int(ROW.argmax())}


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_frequencies_are_those_of_the_softmax(temperature: float) -> None:
    """Over 1500 seeds: every token within five standard deviations."""
    num_draws = 1500
    counts = np.zeros(NUM_TOKENS)
    for seed in range(num_draws):
        counts[choose(ROW, SamplingParams(seed=seed, temperature=temperature)).token_id] += 1

    expected = softmax(ROW, temperature)
    deviation = np.sqrt(expected * (1 - expected) / num_draws)
    assert (np.abs(counts / num_draws - expected) < 5 * deviation + 1e-9).all()


def test_positions_of_one_seed_are_independent_draws() -> None:
    """Frequencies over the positions of one request are those of the softmax too."""
    num_draws = 1500
    params = SamplingParams(seed=11)
    counts = np.zeros(NUM_TOKENS)
    for position in range(num_draws):
        counts[choose(ROW, params, output=[1] * position).token_id] += 1

    expected = softmax(ROW)
    assert (np.abs(counts / num_draws - expected) < 5 * np.sqrt(expected / num_draws)).all()


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_random_numbers_lie_in_the_unit_interval_and_repeat(seed: int, position: int) -> None:
    """Stateless: asked again, the same; seeds may be negative."""
    assert 0.0 <= uniform(seed, position) < 1.0
    assert uniform(seed, position) == uniform(seed, position)


def test_random_numbers_differ_between_seeds_and_positions() -> None:
    """No two of 400 (seed, position) pairs share a number."""
    assert len({uniform(seed, position) for seed in range(-10, 10) for position in range(20)}) == 400


@settings(max_examples=50)
@given(st.data())
def test_a_token_does_not_depend_on_the_batch(data: st.DataObject) -> None:
    """Alone, and anywhere among neighbours of any kind, the same token and log-probability."""
    params = st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.3]),
        top_k=st.integers(0, 5),
        top_p=st.sampled_from([1.0, 0.8]),
        seed=st.integers(0, 100),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        num_top_logprobs=st.sampled_from([None, 2]),
    )
    rows = RANDOM.normal(size=(4, NUM_TOKENS)).astype(np.float32)
    contexts = [context(data.draw(params), output=[1, 2]) for _ in rows]

    together = sample(Rows(*rows), contexts)

    assert together == [sample(Rows(row), [one])[0] for row, one in zip(rows, contexts, strict=True)]


def test_repetition_penalty_equals_that_of_transformers() -> None:
    """Over prompt and output, for positive and negative logits."""
    torch = pytest.importorskip("torch")
    from transformers import RepetitionPenaltyLogitsProcessor

    for penalty in (0.5, 1.3, 5.0):
        prompt, output = [0, 3, 3], [5, 9, 5]
        theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *output]]), torch.tensor(ROW[None]))
        ours = choose(ROW, greedy(repetition_penalty=penalty), prompt=prompt, output=output)

        assert ours.token_id == int(theirs[0].argmax())
        probabilities = softmax(theirs[0].numpy())
        tokens = {
            seed: choose(ROW, SamplingParams(seed=seed, repetition_penalty=penalty), prompt=prompt, output=output)
            for seed in range(50)
        }
        cumulated = np.cumsum(probabilities)
        assert all(
            token.token_id == int(np.searchsorted(cumulated, uniform(seed, 3), side="right"))
            for seed, token in tokens.items()
        )


def test_presence_penalty_is_subtracted_once_from_output_tokens() -> None:
    """Not from tokens of the prompt."""
    row = [2.0, 1.5, 0.0]
    params = greedy(presence_penalty=1.0)

    assert choose(row, params, prompt=[0], output=[2]).token_id == 0
    assert choose(row, params, prompt=[2], output=[0]).token_id == 1
    assert choose([2.0, 0.9, 0.0], params, prompt=[2], output=[0, 0, 0]).token_id == 0


def test_frequency_penalty_is_subtracted_per_occurrence() -> None:
    """In the output."""
    params = greedy(frequency_penalty=0.4)

    assert choose([2.0, 1.5], params, prompt=[0, 0, 0], output=[0]).token_id == 0
    assert choose([2.0, 1.5], params, prompt=[1], output=[0, 0]).token_id == 1
    assert choose([2.0, 1.5], params, prompt=[1], output=[0, 0, 1, 1]).token_id == 0


def test_negative_penalties_favour_repetition() -> None:
    """Both signs are in bounds."""
    assert choose([1.0, 0.5], greedy(presence_penalty=-1.0), output=[1]).token_id == 1


def test_bias_is_added_before_the_repetition_penalty() -> None:
    """As generation.proto orders them: (1 + 3) / 2 = 2 beats 1.9, 1 / 2 + 3 would beat 2.5 as well, 3.4 it would."""
    params = greedy(logit_bias={0: 3.0}, repetition_penalty=2.0)

    assert choose([1.0, 1.9], params, prompt=[0]).token_id == 0
    assert choose([1.0, 2.5], params, prompt=[0]).token_id == 1


def test_a_bias_of_minus_100_bans_and_of_plus_100_forces_a_token() -> None:
    """As OpenAI's API describes them."""
    assert int(ROW.argmax()) not in chosen_set(ROW, logit_bias={int(ROW.argmax()): -100.0})
    assert chosen_set(ROW, num_draws=20, logit_bias={int(ROW.argmin()): 100.0}) == {int(ROW.argmin())}


@pytest.mark.parametrize("bias", [{}, {1: 100.0}])
def test_end_tokens_cannot_be_chosen_before_the_minimum(bias: dict[int, float]) -> None:
    """Not even a forced one; from position min_tokens on they can."""
    ends = frozenset({1, 2})
    params = greedy(min_tokens=2, logit_bias=bias)
    row = [0.0, 9.0, 8.0, 1.0]

    chosen = [choose(row, params, output=[0] * position, ends=ends).token_id for position in range(4)]

    assert chosen == [3, 3, 1, 1]


@given(LOGIT_ROWS, st.integers(0, 20))
def test_logprobs_are_those_of_the_unedited_model(row: list[float], num_top: int) -> None:
    """Before bias, penalties and temperature; alternatives in order of probability, then of id."""
    params = greedy(num_top_logprobs=num_top, logit_bias={0: 100.0}, presence_penalty=2.0)

    token = choose(row, params, output=[1])

    logprobs = np.log(softmax(row) + 1e-300)
    order = sorted(range(len(row)), key=lambda token_id: (-np.float32(row[token_id]), token_id))[:num_top]
    assert token.token_id == 0
    assert token.logprob == pytest.approx(max(logprobs[0], token.logprob), abs=1e-9)
    assert [other.token_id for other in token.alternatives] == order
    assert [other.logprob for other in token.alternatives] == sorted(
        (other.logprob for other in token.alternatives), reverse=True
    )
    assert token.logprob <= 0.0


def test_logprobs_are_reported_only_where_they_were_asked_for() -> None:
    """0 alternatives still means a log-probability of the token itself."""
    assert choose(ROW, greedy()).logprob is None
    token = choose(ROW, greedy(num_top_logprobs=0))
    assert token.logprob == pytest.approx(math.log(softmax(ROW).max()))
    assert token.alternatives == ()


def test_the_runners_rows_are_not_written_into() -> None:
    """They belong to the runner."""
    everything = SamplingParams(
        top_k=3, top_p=0.9, min_p=0.1, logit_bias={1: 1.0}, repetition_penalty=2.0, frequency_penalty=1.0, min_tokens=9
    )

    choose(ROW, everything, output=[1, 2], ends=frozenset({3}))  # `Rows` is read-only


NAN, INFINITE = math.nan, math.inf


@pytest.mark.parametrize(
    "bad", [[0.0, NAN, 1.0], [NAN] * 3, [0.0, INFINITE, 1.0], [-INFINITE] * 3], ids=["nan", "nans", "inf", "-inf"]
)
@pytest.mark.parametrize(
    "params", [greedy(), greedy(num_top_logprobs=1), greedy(logit_bias={0: 1.0}), SamplingParams(top_p=0.9)]
)
def test_logits_that_are_not_finite_give_no_token(bad: list[float], params: SamplingParams) -> None:
    """On every path, and for that row alone."""
    good = [0.0, 5.0, -INFINITE]

    first, failed, last = sample(Rows(good, bad, good), [context(params)] * 3)

    assert isinstance(failed, NonFiniteLogitsError)
    assert isinstance(first, SampledToken)
    assert isinstance(last, SampledToken)


def test_edits_that_leave_no_token_give_none() -> None:
    """Where everything probable is banned, what is left is not chosen at random."""
    (outcome,) = sample(Rows([-INFINITE, 3.0]), [context(greedy(min_tokens=1), ends=frozenset({1}))])

    assert isinstance(outcome, NonFiniteLogitsError)


def test_a_row_whose_choice_raises_fails_alone() -> None:
    """A token id beyond the row, which no checked request has: its neighbours get their tokens."""
    contexts = [context(SamplingParams(seed=1)), context(greedy(logit_bias={99: 1.0})), context(greedy())]

    first, failed, last = sample(Rows(ROW, ROW, ROW), contexts)

    assert first == choose(ROW, SamplingParams(seed=1))
    assert isinstance(failed, IndexError)
    assert last == SampledToken(int(ROW.argmax()))


def test_only_rows_that_need_it_are_copied_to_the_host() -> None:
    """Greedy neighbours of a sampled row stay with the framework's argmax."""

    class Counting(Rows):
        indices: Sequence[int] | None = None

        def rows(self, indices: Sequence[int] | None = None) -> Any:
            """Note which."""
            self.indices = indices
            return super().rows(indices)

    logits = Counting(ROW, -ROW, ROW)

    outcomes = sample(logits, [context(greedy()), context(SamplingParams(seed=3)), context(greedy())])

    assert logits.indices == [1]
    assert outcomes == [choose(ROW, greedy()), choose(-ROW, SamplingParams(seed=3)), choose(ROW, greedy())]


def constrained(regex: str) -> Constraint:
    """Return a constraint over single bytes."""
    compiler = ConstraintCompiler(tokenizer_text, vocabulary_size=BYTES, eos_token_ids=[END])
    made = asyncio.run(compiler.constraint(StructuredOutput("regex", regex)))
    assert made is not None
    return made


def choose_in_form(
    regex: str, params: SamplingParams, output: str = "", ends: frozenset[int] = frozenset({END})
) -> str:
    """Return the text of the next token of an output in a form; "<end>" for an end token."""
    row = RANDOM.normal(size=BYTES)
    params = replace(params, structured_output=StructuredOutput("regex", regex))
    one = SamplingContext(params, [1, *tokens_of(output)], 1, ends, constrained(regex))
    (token,) = sample(Rows(row), [one])
    assert isinstance(token, SampledToken), token
    return "<end>" if token.token_id in ends else text_of([token.token_id])


@pytest.mark.parametrize("params", [greedy(), SamplingParams(seed=4), SamplingParams(top_k=1), greedy(min_tokens=9)])
def test_a_form_leaves_what_may_come_next(params: SamplingParams) -> None:
    """And nothing else, before and after the first letter; min_tokens yields where only the end is left."""
    assert choose_in_form("[xy]z", params) in "xy"
    assert choose_in_form("[xy]z", params, "x") == "z"
    assert choose_in_form("x|xyz", params, "x") in ("y", "<end>")
    assert choose_in_form("x{0}", params) == "<end>"


def test_filters_count_what_the_form_leaves() -> None:
    """The best token of the row may be excluded: top_k of 1 is the best of the others."""
    (x_token,) = tokens_of("x")

    assert choose_in_form("[a-f]", SamplingParams(top_k=1, logit_bias={x_token: 100.0})) in "abcdef"


def test_a_stop_token_of_the_request_is_allowed_where_the_form_is_complete() -> None:
    """As the model's own end tokens are."""
    (semicolon,) = tokens_of(";")
    params = greedy(logit_bias={semicolon: 100.0})

    assert choose_in_form("a+", params, "", frozenset({semicolon})) == "a"
    assert choose_in_form("a+", params, "a", frozenset({semicolon})) == "<end>"


def test_an_output_outside_its_form_fails() -> None:
    """No token can follow it."""
    params = greedy(structured_output=StructuredOutput("regex", "ab"))
    one = SamplingContext(params, [1, *tokens_of("x")], 1, frozenset({END}), constrained("ab"))

    (outcome,) = sample(Rows(RANDOM.normal(size=BYTES)), [one])

    assert isinstance(outcome, ConstraintError)


class CountedRows(Rows):
    """Logits that tell which rows have been copied to the host."""

    copied: Sequence[int] | None = None

    def rows(self, indices: Sequence[int] | None = None) -> Any:
        """Return rows, and note which."""
        self.copied = indices
        return super().rows(indices)


def test_a_masked_end_costs_a_row_only_where_it_would_have_been_chosen() -> None:
    """The argmax of the others stands: in a benchmark no logits travel to the host."""
    logits = CountedRows([0.0, 9.0, 1.0], [0.0, 2.0, 9.0], [5.0, 5.0, 9.0])
    masked = context(greedy(min_tokens=4), ends=frozenset({2}))
    late = context(greedy(min_tokens=4), output=[0] * 4, ends=frozenset({2}))

    tokens = sample(logits, [masked, masked, late])

    assert [token.token_id for token in tokens if isinstance(token, SampledToken)] == [1, 1, 2]
    assert logits.copied == [1]


def test_bad_words_lose_their_last_token_where_the_output_ends_with_the_others() -> None:
    """Of the output alone, whatever the prompt ends with; a word of one token never comes."""
    row = [0.0, 1.0, 2.0, 3.0]
    params = greedy(bad_words=((3,), (0, 2)))

    assert choose(row, params).token_id == 2
    assert choose(row, params, prompt=(0,)).token_id == 2
    assert choose(row, params, output=(0,)).token_id == 1
    assert choose(row, params, output=(0, 1)).token_id == 2
    assert choose(row, replace(params, logit_bias={3: 100.0}), output=(0,)).token_id == 1
    assert chosen_set(row, bad_words=((3,), (0,))) == {1, 2}


def test_bad_words_that_leave_nothing_are_named() -> None:
    """It is the request that asks for the impossible."""
    (outcome,) = sample(Rows([0.0, 1.0]), [context(greedy(bad_words=((0,), (1,))))])

    assert isinstance(outcome, InvalidFieldError)
    assert outcome.field == "bad_words"


@pytest.mark.parametrize("words", [((),), ((NUM_TOKENS,),), ((-1,),), ((0,) * 65,), ((0,),) * 257])
def test_bad_words_out_of_bounds_are_named(words: tuple[tuple[int, ...], ...]) -> None:
    """Before anything is computed."""
    with pytest.raises(InvalidFieldError, match="bad_words"):
        SamplingParams(bad_words=words).check(NUM_TOKENS)
