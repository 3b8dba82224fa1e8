"""What is asked: sessions of one or several turns, drawn by a seed.

A session is a conversation: its turns run one after another, each with everything before it as its beginning. Most
datasets have sessions of one turn. Traces of production services are in `traces.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeAlias

Prompt: TypeAlias = str | tuple[int, ...]
"""Text, or token ids that a server takes as they are (`/v1/completions` only)."""

_TEXT = """
able also back best blue book both call city cold come dark days deep door down each east even ever
face fact fall farm feel fire fish five food form four free full game gave girl give gold good half
hand hard have head help here high hold home hope hour idea join keep kind knew know land last late
left life like line list live long
"""
WORDS = tuple(_TEXT.split())


class Vocabulary(Protocol):
    """Draws symbols, 1 token each as nearly as the kind of prompt allows, and renders them as a prompt."""

    def draw(self, random: Random, num_tokens: int) -> list[int]:
        """Return `num_tokens` symbols."""

    def render(self, symbols: Sequence[int]) -> Prompt:
        """Return the prompt that the symbols stand for."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Symbols are token ids of [low, high): a prompt has exactly as many tokens as symbols, whatever the tokenizer."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"token ids are drawn from [{self.low}, {self.high}), which is empty or below 0")

    def draw(self, random: Random, num_tokens: int) -> list[int]:
        """Return token ids, each equally likely."""
        return random.choices(range(self.low, self.high), k=num_tokens)

    def render(self, symbols: Sequence[int]) -> Prompt:
        """Return the token ids."""
        return tuple(symbols)


@dataclass(frozen=True, slots=True)
class Words:
    """Symbols are common English words: about a token each; the exact count is the server's (`usage.prompt_tokens`)."""

    def draw(self, random: Random, num_tokens: int) -> list[int]:
        """Return positions in WORDS, each equally likely."""
        return random.choices(range(len(WORDS)), k=num_tokens)

    def render(self, symbols: Sequence[int]) -> Prompt:
        """Return the words, a space between them."""
        return " ".join(WORDS[symbol] for symbol in symbols)


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


def _session(vocabulary: Vocabulary, symbols: Sequence[int], output_tokens: int) -> Session:
    return Session((Turn(vocabulary.render(symbols), output_tokens),))
