"""Reads the text of one answer, streamed or whole, for whichever API: content, reasoning, and calls with their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from baton.gateway.generation.requests import EndReason, PreparedPrompt
from baton.gateway.generation.tools import new_tool_call_id
from baton.text.output_format import ModelOutputFormat
from baton.text.output_parser import OutputParser
from baton.text.output_parts import CallStart, OutputPart, joined

AnswerEnd = EndReason | Literal["tool_calls"]
"""Why an answer ended, once it has been read."""


def answer_parser(model_format: ModelOutputFormat, prompt: PreparedPrompt) -> OutputParser | None:
    """Return what parses one answer to a prompt; None: its text is all there is."""
    use = prompt.request.tool_use
    if use is None:
        return None
    return model_format.parser(use.offered, is_in_reasoning=prompt.is_in_reasoning, is_parallel=use.is_parallel)


class AnswerReader:
    """Reads one answer, and knows whether it calls."""

    def __init__(self, parser: OutputParser, tool_format: str) -> None:
        self._parser = parser
        self._tool_format = tool_format
        self._has_calls = False

    def push(self, text: str) -> Sequence[OutputPart]:
        """Return what became known by the next text."""
        return self._noted(joined(self._parser.push(text))) if text else ()

    def finish(self) -> Sequence[OutputPart]:
        """Return what was held back; no more text comes."""
        return self._noted(joined(self._parser.finish()))

    def end(self, reason: EndReason) -> AnswerEnd:
        """Return why the answer ended; after all text was read."""
        return "tool_calls" if self._has_calls and reason == "stop" else reason

    def new_call_id(self) -> str:
        """Return a name for a call that begins."""
        return new_tool_call_id(self._tool_format)

    def _noted(self, parts: Sequence[OutputPart]) -> Sequence[OutputPart]:
        self._has_calls = self._has_calls or any(isinstance(part, CallStart) for part in parts)
        return parts


def answer_reader(model_format: ModelOutputFormat, prompt: PreparedPrompt) -> AnswerReader | None:
    """Return what reads one answer to a prompt; None: its text is all there is."""
    parser = answer_parser(model_format, prompt)
    return AnswerReader(parser, model_format.output_format.tool_format) if parser is not None else None
