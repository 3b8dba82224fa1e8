"""Follows an output through the language that it must be a sentence of.

The state is a function of the output so far and of nothing else: given the same tokens, a constraint on any node, after
a preemption or a migration, allows the same next ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from baton.errors import ConstraintError

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
"""Whether each token id is kept."""


class Constraint:
    """The constraint of one request; made by `ConstraintCompiler`, used by one thread at a time.

    Invariant: `_matcher` has consumed exactly the first `_num_followed` tokens of the output; `follow` keeps it.

    Args:
        matcher: llguidance's `LLMatcher`, at the start of the language.
    """

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._num_followed = 0

    def follow(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Consume the output tokens that have not been consumed. O(new tokens).

        Args:
            token_ids: Prompt and output so far; of the output nothing that was followed before may have changed.
            num_prompt_tokens: How many of them are prompt.

        Raises:
            ConstraintError: If the language has no sentence that begins with them.
        """
        fresh = list(token_ids[num_prompt_tokens + self._num_followed :])
        if fresh and not self._matcher.consume_tokens(fresh):
            position = self._num_followed
            raise ConstraintError(f"the output left its form at token {position} or after: {self._matcher.get_error()}")
        self._num_followed += len(fresh)

    @property
    def is_complete(self) -> bool:
        """Return whether the output is a sentence that nothing can follow."""
        is_stopped: bool = self._matcher.is_stopped()
        return is_stopped and not self._matcher.is_error()

    def allowed(self, num_tokens: int, end_token_ids: Collection[int]) -> Mask:
        """Return which tokens may come next; ends of the generation where the output is a sentence.

        Args:
            num_tokens: Size of the vocabulary; what the tokenizer does not know is never allowed.
            end_token_ids: Tokens that would end the generation.

        Raises:
            ConstraintError: If the grammar is too complex at this point, or nothing at all may follow.
        """
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise ConstraintError(f"structured_output cannot be followed any further: {self._matcher.get_error()}")
        bits = np.unpackbits(packed, count=num_tokens if num_tokens <= 8 * len(packed) else None, bitorder="little")
        allowed: Mask = bits.view(np.bool_)
        if len(allowed) < num_tokens:
            allowed = np.concatenate((allowed, np.zeros(num_tokens - len(allowed), dtype=np.bool_)))
        if end_token_ids and self._matcher.is_accepting():
            allowed[list(end_token_ids)] = True
        if not allowed.any():
            raise ConstraintError("structured_output leaves no token that could come next")
        return allowed
