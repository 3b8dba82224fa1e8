"""Follows an output through the language that it must be a sentence of.

The state is a function of the output so far and of nothing else: given the same tokens, a constraint on any node, after
a preemption or a migration, allows the same next ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from baton.errors import ConstraintError, InvalidFieldError

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
"""Whether each token id is kept."""

_MAX_PROBLEM_CHARACTERS = 500
_EMPTY = "NoExtensionBias"
"""llguidance's word for a grammar without a first token."""
_NO_SENTENCE = "satisfy the grammar"
"""Of llguidance's words for a token that does not fit; its other errors are limits of its own."""


class Constraint:
    """The constraint of one request; made by `ConstraintCompiler`, used by one thread at a time.

    Invariant: `_matcher` has consumed exactly the first `_num_followed` tokens of the output; `follow` keeps it.
    """

    def __init__(self, matcher: Any, field: str) -> None:
        self._matcher, self._field = matcher, field
        self._num_followed = 0

    def follow(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Consume the output tokens that have not been consumed. O(new tokens).

        Of the output nothing that was followed before may have changed. Raises ConstraintError if the language has no
        sentence that begins with them, InvalidFieldError if the grammar is too complex there.
        """
        fresh = list(token_ids[num_prompt_tokens + self._num_followed :])
        if fresh and not self._matcher.consume_tokens(fresh):
            problem = problem_of(self._matcher)
            if _NO_SENTENCE not in problem:
                raise self._too_complex(problem)
            raise ConstraintError(f"the output left its form at token {self._num_followed} or after: {problem}")
        self._num_followed += len(fresh)

    @property
    def is_complete(self) -> bool:
        """Return whether the output is a sentence that nothing can follow."""
        is_stopped: bool = self._matcher.is_stopped()
        return is_stopped and not self._matcher.is_error()

    def allowed(self, num_tokens: int, end_token_ids: Collection[int]) -> Mask:
        """Return which tokens may come next, ends of the generation where the output is a sentence.

        What the tokenizer does not know is never allowed. Raises InvalidFieldError if the grammar is too complex at
        this point, or nothing at all may follow.
        """
        packed = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise self._too_complex(problem_of(self._matcher))
        bits = np.unpackbits(packed, count=num_tokens if num_tokens <= 8 * len(packed) else None, bitorder="little")
        allowed: Mask = bits.view(np.bool_)
        if len(allowed) < num_tokens:
            allowed = np.concatenate((allowed, np.zeros(num_tokens - len(allowed), dtype=np.bool_)))
        if end_token_ids and self._matcher.is_accepting():
            allowed[list(end_token_ids)] = True
        if not allowed.any():
            raise InvalidFieldError(self._field, f"no token can follow the first {self._num_followed} of the output")
        return allowed

    def _too_complex(self, problem: str) -> InvalidFieldError:
        return InvalidFieldError(self._field, f"too complex after {self._num_followed} tokens of output: {problem}")


def problem_of(matcher: Any) -> str:
    """Return what an `LLMatcher` says is wrong, or what it warns of; empty if nothing is."""
    problems = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
    text = "; ".join(problems).replace("<non-verbose/>", "").replace(_EMPTY, "no output has this form")
    return text.strip()[:_MAX_PROBLEM_CHARACTERS]
