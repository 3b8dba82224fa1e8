"""What is asked: sessions of one or several turns, drawn by a seed.

A session is a conversation: its turns run one after another, each with everything before it as its beginning. Most
datasets have sessions of one turn. Traces of production services are in `traces.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from bench.workloads.vocabulary import Prompt, Vocabulary

PREFILL_HEAVY_TOKENS = (462, 16)
DECODE_HEAVY_TOKENS = (462, 256)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: what the user adds, and how many tokens to generate (exactly, where the server bans the end)."""

    prompt: Prompt
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation of 1 or more turns."""

    turns: tuple[Turn, ...]
    arrival_seconds: float | None = None
    """When it began, seconds after the beginning of its trace; None where there is no trace."""


def fixed_lengths(
    vocabulary: Vocabulary, random: Random, count: int, *, prompt_tokens: int, output_tokens: int
) -> list[Session]:
    """Return sessions of one turn, all of the same lengths, no prefix in common."""
    return [_session(vocabulary, vocabulary.draw(random, prompt_tokens), output_tokens) for _ in range(count)]


def random_lengths(
    vocabulary: Vocabulary, random: Random, count: int, *, prompt_tokens: range, output_tokens: range
) -> list[Session]:
    """Return sessions of one turn; both lengths are drawn uniformly and independently."""
    return [
        _session(vocabulary, vocabulary.draw(random, random.choice(prompt_tokens)), random.choice(output_tokens))
        for _ in range(count)
    ]


def shared_prefix(
    vocabulary: Vocabulary,
    random: Random,
    count: int,
    *,
    num_prefixes: int,
    prefix_tokens: int,
    suffix_tokens: int,
    output_tokens: int,
) -> list[Session]:
    """Return sessions of one turn that begin with one of a few prefixes, each equally likely, and end alone."""
    prefixes = [vocabulary.draw(random, prefix_tokens) for _ in range(num_prefixes)]
    return [
        _session(vocabulary, random.choice(prefixes) + vocabulary.draw(random, suffix_tokens), output_tokens)
        for _ in range(count)
    ]


def multi_turn(
    vocabulary: Vocabulary, random: Random, count: int, *, num_turns: int, prompt_tokens: int, output_tokens: int
) -> list[Session]:
    """Return sessions of several turns, each of which adds `prompt_tokens` to what was said before."""
    return [
        Session(
            tuple(
                Turn(vocabulary.render(vocabulary.draw(random, prompt_tokens)), output_tokens) for _ in range(num_turns)
            )
        )
        for _ in range(count)
    ]


def num_turns(sessions: Sequence[Session]) -> int:
    """Return the number of requests that the sessions make."""
    return sum(len(session.turns) for session in sessions)


def _session(vocabulary: Vocabulary, symbols: Sequence[int], output_tokens: int) -> Session:
    return Session((Turn(vocabulary.render(symbols), output_tokens),))
