"""The parts of one choice of a chat completion, in OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from baton.gateway.call_id import new_call_id
from baton.gateway.requests import EndReason, PreparedPrompt
from baton.gateway.tool_use import ToolUse
from baton.text.answer_parser import AnswerParser
from baton.text.answer_reader import AnswerReader
from baton.text.output_parts import CallArguments, CallStart, Content, OutputPart, Reasoning, joined


class FunctionBody(msgspec.Struct, omit_defaults=True):
    """What a call calls; a stream's first delta of it has the name."""

    arguments: str
    name: str | None = None


class ToolCallBody(msgspec.Struct, omit_defaults=True):
    """A call; later deltas of a stream leave out what the first has said."""

    function: FunctionBody
    index: int | None = None
    id: str | None = None
    type: str | None = None


class DeltaBody(msgspec.Struct, omit_defaults=True):
    """`delta` of a stream's event."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same; some servers and their clients have this name for it."""
    tool_calls: list[ToolCallBody] | None = None


class Reading:
    """Reads one choice, streamed or whole."""

    def __init__(self, parser: AnswerParser, tool_format: str) -> None:
        self._parser = parser
        self._tool_format = tool_format
        self._has_calls = False

    def push(self, text: str) -> list[DeltaBody]:
        """Return what became known by the next text."""
        return self._bodies(self._parser.push(text)) if text else []

    def finish(self) -> list[DeltaBody]:
        """Return what was held back; no more text comes."""
        return self._bodies(self._parser.finish())

    def finish_reason(self, reason: EndReason) -> str:
        """Return why the choice ended, in OpenAI's words; after all text was read."""
        return "tool_calls" if self._has_calls and reason == "stop" else reason

    def message(self, text: str) -> dict[str, object]:
        """Return the fields of a whole message."""
        parts = self._parser.read(text)
        content = "".join(part.text for part in parts if isinstance(part, Content))
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        calls: list[ToolCallBody] = []
        for part in parts:
            if isinstance(part, CallStart):
                calls.append(self._opened_call(part.name))
            elif isinstance(part, CallArguments):
                calls[-1].function.arguments += part.text
        self._has_calls = bool(calls)
        fields: dict[str, object] = {"content": content if content or not calls else None}
        if reasoning:
            fields |= {"reasoning_content": reasoning, "reasoning": reasoning}
        return {**fields, "tool_calls": calls} if calls else fields

    def _bodies(self, parts: Sequence[OutputPart]) -> list[DeltaBody]:
        return [body for part in joined(parts) if (body := self._body(part)) is not None]

    def _body(self, part: OutputPart) -> DeltaBody | None:
        match part:
            case Content(text):
                return DeltaBody(content=text)
            case Reasoning(text):
                return DeltaBody(reasoning_content=text, reasoning=text)
            case CallStart(call_index, name):
                self._has_calls = True
                call = self._opened_call(name)
                call.index = call_index
                return DeltaBody(tool_calls=[call])
            case CallArguments(call_index, text):
                return DeltaBody(tool_calls=[ToolCallBody(FunctionBody(text), call_index)])
            case _:
                return None

    def _opened_call(self, name: str) -> ToolCallBody:
        return ToolCallBody(FunctionBody("", name), id=new_call_id(self._tool_format), type="function")


ReadAnswer: TypeAlias = Callable[[], Reading | None]
"""Makes what reads one choice; None: its text is all there is."""


def read_answer(reader: AnswerReader, prompt: PreparedPrompt, use: ToolUse) -> Reading | None:
    """Return what reads one choice of an answer."""
    parser = reader.parser(use.offered, is_in_reasoning=prompt.is_in_reasoning, is_parallel=use.is_parallel)
    return Reading(parser, reader.dialect.tool_format) if parser is not None else None
