"""Prompts of exactly so many tokens, found from outside: only their counts are known, not the tokenizer.

Source: exo's bench/METHODOLOGY.md (a binary search over repetitions of an atom), with openings that keep prompts apart
and counts that may come from the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random

Count = Callable[[str], Awaitable[int]]
"""Counts the prompt tokens of a chat whose one message has this content, the chat template included."""

ATOMS = ("a ", " a", "\n", "0 ", "a")
_TRIAL_REPETITIONS = 64


@dataclass(frozen=True, slots=True)
class Recipe:
    """A prompt's length: an atom and how often it is repeated after the opening."""

    atom: str
    repetitions: int


class PromptSizer:
    """Finds recipes for lengths and makes prompts by them.

    Args:
        count: Counts tokens.
        random: Draws openings, which keep prompts apart; None: prompts of one length are equal.
        atoms: Tried in this order.
    """

    def __init__(self, count: Count, random: Random | None, atoms: Sequence[str] = ATOMS) -> None:
        self._count = count
        self._random = random
        self._atoms = atoms

    def prompt(self, recipe: Recipe) -> str:
        """Return a prompt with an opening of its own."""
        return self._opening() + recipe.atom * recipe.repetitions

    async def fit(self, num_tokens: int) -> Recipe:
        """Return a recipe for prompts of `num_tokens` tokens: the first atom that can make it.

        Costs about 4 counts where the atom's tokens do not depend on its neighbours, and log2(num_tokens) at worst.

        Raises:
            ValueError: If the template alone is longer, or no atom makes the length.
        """
        overhead = await self._count(self._opening())
        if overhead > num_tokens:
            raise ValueError(f"{num_tokens} prompt tokens are fewer than template and opening have: {overhead}")
        for atom in self._atoms:
            repetitions = await self._search(num_tokens, atom, overhead)
            if repetitions is not None:
                return Recipe(atom, repetitions)
        raise ValueError(f"no repetition of {list(self._atoms)} makes {num_tokens} tokens")

    def _opening(self) -> str:
        """Return four three-digit numbers, a space after each; one such beginning in 10^11 is drawn twice.

        Three digits, since tokenizers that join digits join up to three: every opening has as many tokens as any other.
        """
        return "" if self._random is None else "".join(f"{self._random.randrange(100, 1000)} " for _ in range(4))

    async def _search(self, target: int, atom: str, overhead: int) -> int | None:
        """Return how often to repeat the atom; None if it skips the target.

        Invariant: `low` repetitions make fewer tokens than the target, `high` (once known) make more.
        """
        if overhead == target:
            return 0
        low, tokens_at_low, high = 0, overhead, None
        trial = min(_TRIAL_REPETITIONS, target - overhead)
        while True:
            num_tokens = await self._count(self.prompt(Recipe(atom, trial)))
            if num_tokens == target:
                return trial
            if num_tokens > target:
                high = trial
            else:
                low, tokens_at_low = trial, num_tokens
            if high is not None and high - low <= 1:
                return None
            trial = self._next_trial(target, trial, num_tokens - overhead, low, tokens_at_low, high)

    @staticmethod
    def _next_trial(target: int, trial: int, grown: int, low: int, tokens_at_low: int, high: int | None) -> int:
        """Return the repetitions that the atom's rate suggests, or the middle where the rate leaves the bracket."""
        if grown <= 0:
            return trial * 2
        # Rounded up: a rate measured on few atoms must not creep towards the target one atom at a time.
        suggested = low + max(1, -(-(target - tokens_at_low) * trial // grown))
        if high is None:
            return suggested
        return suggested if low < suggested < high else (low + high) // 2
