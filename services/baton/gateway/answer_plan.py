"""How the answer to one request will be read, and what forces it to be readable."""

from __future__ import annotations

from typing import NamedTuple

from baton.errors import InvalidFieldError
from baton.gateway.tool_use import ToolUse
from baton.text.answer_reader import AnswerReader
from baton.text.tool_calls.grammar import CallGrammar
from baton.v1.generation_pb2 import SamplingParameters


class ReadingPlan(NamedTuple):
    """What generation and parser have to know."""

    kept_token_ids: frozenset[int] = frozenset()
    """Special tokens whose names are part of the text."""
    is_in_reasoning: bool = False
    """Whether the prompt ends with the mark that opens the reasoning."""


def plan_reading(use: ToolUse | None, reader: AnswerReader, prompt: str, sampling: SamplingParameters) -> ReadingPlan:
    """Return how an answer is read; sets the grammar of `sampling` where calls are forced or schemas strict.

    Args:
        use: Tools; None: the answer is not read.
        reader: Of the model.
        prompt: Its text.
        sampling: Of the request, to be completed.

    Raises:
        InvalidFieldError: If the model calls no tools, or not in a way that can be forced.
    """
    if use is None:
        return ReadingPlan()
    is_in_reasoning = reader.dialect.opens_reasoning(prompt)
    plan = ReadingPlan(reader.kept_token_ids(has_tools=bool(use.offered)), is_in_reasoning)
    if not use.offered:
        _let_reason(reader, sampling, is_in_reasoning=is_in_reasoning)
        return plan
    if reader.grammar is None:
        raise InvalidFieldError(
            "tools", "the format in which this model calls tools is not known; see tool_call_parser"
        )
    _check_strict(use, reader.grammar)
    if sampling.HasField("structured_output"):
        _let_call(use, reader, sampling, is_in_reasoning=is_in_reasoning)
        return plan
    strict = next((index for index, tool in enumerate(use.tools) if tool.is_strict), None)
    if use.forced:
        lark = reader.grammar.forced(use.forced, is_parallel=use.is_parallel, is_in_reasoning=is_in_reasoning)
    elif strict is None:
        return plan
    elif reader.grammar.can_follow_text:
        lark = reader.grammar.free(use.tools)
    else:
        problem = "calls of this model cannot be told from text in advance, so that none can be made strict"
        raise InvalidFieldError(f"tools[{strict}].{use.fields.strict}", problem)
    sampling.structured_output.lark = lark
    return plan


def _check_strict(use: ToolUse, grammar: CallGrammar) -> None:
    """Refuse strict schemas to which the calls of this model cannot be held.

    Raises:
        InvalidFieldError: If there is one.
    """
    for index, tool in enumerate(use.tools):
        keyword = grammar.unheld_keyword(tool) if tool.is_strict else None
        if keyword is not None:
            field = f"tools[{index}].{use.fields.parameters}.{keyword}"
            raise InvalidFieldError(field, "this model writes strings unquoted, so that it cannot be made strict here")


def _let_call(use: ToolUse, reader: AnswerReader, sampling: SamplingParameters, *, is_in_reasoning: bool) -> None:
    """Let a model call in place of an answer that must have a form.

    Raises:
        InvalidFieldError: If it must call, or its calls cannot be told from an answer in advance.
    """
    form, lark = sampling.structured_output, None
    kind = form.WhichOneof("constraint")
    if kind is not None and not use.forced:
        lark = reader.form_or_calls(
            kind, getattr(form, kind), use.tools, is_parallel=use.is_parallel, is_in_reasoning=is_in_reasoning
        )
    if lark is None:
        choices = "tool_choice none" if use.forced else "a model whose calls can be told from it"
        raise InvalidFieldError("tools", f"expected no tools, or {choices}, where the form of the output is given")
    form.lark = lark


def _let_reason(reader: AnswerReader, sampling: SamplingParameters, *, is_in_reasoning: bool) -> None:
    """Let a model that reasons do so before an answer that must have a form."""
    form = sampling.structured_output
    kind = form.WhichOneof("constraint")
    if kind is not None:
        lark = reader.reasoned_form(kind, getattr(form, kind), is_in_reasoning=is_in_reasoning)
        if lark is not None:
            form.lark = lark
