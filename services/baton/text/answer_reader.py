"""Reads the answers of one model: what its dialect means for its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from baton.text.answer_parser import AnswerParser
from baton.text.dialect import REASONING_MARKS, Dialect
from baton.text.reasoned_form import FormKind, embedded_form, reasoned_form
from baton.text.tokenizer import Tokenizer
from baton.text.tool_calls.grammar import CallGrammar
from baton.text.tool_calls.notation import notation_of
from baton.text.tools import Tool


class AnswerReader:
    """Knows one model's dialect and tokenizer."""

    def __init__(self, tokenizer: Tokenizer, dialect: Dialect) -> None:
        self.dialect = dialect
        """The model's formats."""
        self.template_names = tokenizer.template_names
        """Names that the chat template may read."""
        self._kept_token_ids = {
            has_tools: frozenset(tokenizer.special_tokens(dialect.marks(has_tools=has_tools)).values())
            for has_tools in (False, True)
        }
        marks = REASONING_MARKS.get(dialect.reasoning_format)
        self._marks = marks
        self._special_tokens = tokenizer.special_tokens(dialect.marks(has_tools=True))
        self._reasoning_tokens = None
        if marks is not None:
            begin = tuple(tokenizer.encode(marks.begin, add_special_tokens=False))
            self._reasoning_tokens = begin, tokenizer.single_token(marks.end)
        self.grammar: CallGrammar | None = None
        """Makes the model call; None: it has no format of calls."""
        if dialect.tool_format:
            is_separate = dialect.tool_format != "harmony"
            notation = notation_of(dialect.tool_format, tokenizer.template)
            self.grammar = CallGrammar(notation, self._special_tokens, marks if is_separate else None)

    def kept_token_ids(self, *, has_tools: bool) -> frozenset[int]:
        """Return the special tokens whose names a parser must see."""
        return self._kept_token_ids[has_tools]

    def parser(self, tools: Sequence[Tool], *, is_in_reasoning: bool, is_parallel: bool) -> AnswerParser | None:
        """Return a parser of one answer; see `Dialect.parser`."""
        return self.dialect.parser(tools, is_in_reasoning=is_in_reasoning, is_parallel=is_parallel)

    def reasoned_form(self, kind: FormKind, text: str, *, is_in_reasoning: bool) -> str | None:
        """Return the grammar of reasoning and then a form, or None if the model marks no reasoning."""
        if self._marks is None:
            return None
        return reasoned_form(kind, text, self._marks, self._special_tokens, is_in_reasoning=is_in_reasoning)

    def form_or_calls(
        self, kind: FormKind, text: str, tools: Sequence[Tool], *, is_parallel: bool, is_in_reasoning: bool
    ) -> str | None:
        """Return the grammar of an answer that has a form or is calls; None if the model's calls do not allow it."""
        if self.grammar is None or not self.grammar.can_replace(is_json=kind == "json_schema"):
            return None
        form = embedded_form(kind, text)
        return self.grammar.form_or_calls(form, tools, is_parallel=is_parallel, is_in_reasoning=is_in_reasoning)

    def count_reasoning(self, token_ids: Sequence[int], *, is_in_reasoning: bool) -> int | None:
        """Return the number of tokens of an answer's reasoning, marks not counted.

        Args:
            token_ids: The answer.
            is_in_reasoning: Whether the prompt ends with the mark that opens the reasoning.

        Returns:
            None if the model marks no reasoning, or its closing mark is no token of its own.
        """
        if self._reasoning_tokens is None or self._reasoning_tokens[1] is None:
            return None
        begin, end = self._reasoning_tokens
        start = 0 if is_in_reasoning else len(begin)
        if tuple(token_ids[:start]) != begin[:start]:
            return 0
        rest = list(token_ids[start:])
        return rest.index(end) if end in rest else len(rest)
