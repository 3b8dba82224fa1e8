"""What prompts are made of: token ids, sent as such, or words, sent as text."""

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
