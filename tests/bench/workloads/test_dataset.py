"""Datasets: their lengths, what they share, and that a seed decides them."""

from __future__ import annotations

from random import Random

import pytest

from bench.workloads import dataset
from bench.workloads.dataset import WORDS, Prompt, TokenIds, Words

IDS = TokenIds(3, 90)


def ids(prompt: Prompt) -> tuple[int, ...]:
    """Return a prompt that must be of token ids."""
    assert not isinstance(prompt, str)
    return prompt


def test_fixed_lengths_are_exact_and_prompts_differ() -> None:
    """Every session has one turn of the given lengths."""
    sessions = dataset.fixed_lengths(IDS, Random(1), 5, prompt_tokens=462, output_tokens=16)

    assert [(len(ids(session.turns[0].prompt)), session.turns[0].max_tokens) for session in sessions] == [(462, 16)] * 5
    assert len({session.turns[0].prompt for session in sessions}) == 5


def test_random_lengths_stay_in_their_ranges_and_fill_them() -> None:
    """Lengths are uniform: their mean is near the middle."""
    sessions = dataset.random_lengths(IDS, Random(1), 500, prompt_tokens=range(10, 21), output_tokens=range(1, 5))
    lengths = [len(ids(session.turns[0].prompt)) for session in sessions]

    assert set(lengths) == set(range(10, 21))
    assert sum(lengths) / len(lengths) == pytest.approx(15, abs=0.5)
    assert {session.turns[0].max_tokens for session in sessions} == {1, 2, 3, 4}


def test_shared_prefixes_are_shared_and_the_rest_is_not() -> None:
    """Prompts begin with one of the prefixes and end differently."""
    sessions = dataset.shared_prefix(
        IDS, Random(1), 40, num_prefixes=3, prefix_tokens=20, suffix_tokens=15, output_tokens=4
    )
    prompts = [ids(session.turns[0].prompt) for session in sessions]

    assert len({prompt[:20] for prompt in prompts}) == 3
    assert len({prompt[20:] for prompt in prompts}) == 40
    assert {len(prompt) for prompt in prompts} == {35}


def test_multi_turn_sessions_have_their_turns() -> None:
    """Each turn adds words of its own."""
    sessions = dataset.multi_turn(Words(), Random(1), 2, num_turns=3, prompt_tokens=5, output_tokens=4)

    assert [len(session.turns) for session in sessions] == [3, 3]
    assert all(len(str(turn.prompt).split()) == 5 for session in sessions for turn in session.turns)


def test_a_seed_decides_a_dataset() -> None:
    """The same seed gives the same sessions, another seed others."""
    first, again, other = (
        dataset.fixed_lengths(IDS, Random(seed), 3, prompt_tokens=8, output_tokens=1) for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


def test_words_are_common_and_distinct() -> None:
    """No word twice, so all are equally likely."""
    assert len(set(WORDS)) == len(WORDS) > 50


def test_an_empty_range_of_token_ids_is_refused() -> None:
    """There would be nothing to draw."""
    with pytest.raises(ValueError, match="empty"):
        TokenIds(5, 5)
