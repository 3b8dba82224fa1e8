"""The search for prompts of an exact length, against tokenizers that are only seen from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import pytest

from bench.pptg.prompt_sizer import PromptSizer, Recipe

OVERHEAD = 11
"""Tokens of the imagined chat template."""


class Counter:
    """Counts by a rule and remembers what it was asked."""

    def __init__(self, rule: Callable[[str], int]) -> None:
        self.rule = rule
        self.contents: list[str] = []

    async def __call__(self, content: str) -> int:
        """Return the template's tokens and those of the content."""
        self.contents.append(content)
        return OVERHEAD + self.rule(content)


def words(content: str) -> int:
    """Count a token per word."""
    return len(content.split())


def merged(content: str) -> int:
    """Count runs of eight letters as a token, anything else by the character."""
    return content.count("a" * 8) + len(content.replace("a" * 8, ""))


@pytest.mark.parametrize("target", [15, 16, 99, 512, 4096])
@pytest.mark.parametrize("rule", [words, len, merged], ids=["words", "bytes", "merged"])
def test_every_length_is_reached_whatever_the_tokenizer(rule: Callable[[str], int], target: int) -> None:
    """A prompt by the recipe has the length; with bytes, `"a "` skips odd lengths and another atom makes them."""
    counter = Counter(rule)
    sizer = PromptSizer(counter, Random(1) if rule is words else None)

    recipe = asyncio.run(sizer.fit(target))

    assert asyncio.run(counter(sizer.prompt(recipe))) == target


def test_a_regular_atom_costs_few_counts() -> None:
    """The atom's rate leads to the length at once; each count is a request."""
    counter = Counter(words)

    asyncio.run(PromptSizer(counter, None).fit(100_000))

    assert len(counter.contents) <= 4


def test_a_template_longer_than_the_length_is_refused() -> None:
    """No prompt can be shorter than its template."""
    with pytest.raises(ValueError, match="10 prompt tokens are fewer"):
        asyncio.run(PromptSizer(Counter(words), None).fit(10))


def test_a_length_that_no_atom_makes_is_refused() -> None:
    """An atom of three tokens makes every third length."""
    sizer = PromptSizer(Counter(len), None, ["abc"])

    assert asyncio.run(sizer.fit(OVERHEAD + 300)) == Recipe("abc", 100)
    with pytest.raises(ValueError, match="no repetition of"):
        asyncio.run(sizer.fit(OVERHEAD + 301))


def test_openings_keep_prompts_apart_and_their_lengths_equal() -> None:
    """Cold prompts differ from their beginning on, those of the search too."""
    counter = Counter(len)
    sizer = PromptSizer(counter, Random(1))
    recipe = asyncio.run(sizer.fit(200))
    prompts = [sizer.prompt(recipe) for _ in range(50)]

    openings = {prompt[:16] for prompt in [*prompts, *counter.contents]}
    assert len(openings) == 50 + len(counter.contents)
    assert {len(prompt) for prompt in prompts} == {200 - OVERHEAD}


def test_prompts_for_the_prefix_cache_are_equal() -> None:
    """Without an opening, a length is one text."""
    sizer = PromptSizer(Counter(len), None)

    assert sizer.prompt(Recipe("a", 5)) == sizer.prompt(Recipe("a", 5)) == "aaaaa"
