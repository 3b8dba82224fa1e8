"""Turns the text of one answer into its parts: reasoning, content, calls of tools."""

from __future__ import annotations

from baton.text.output_parts import CallArguments, CallEnd, CallStart, Content, OutputPart, Reasoning
from baton.text.reasoning_parser import ReasoningParser, ReasoningSplit
from baton.text.tool_calls.parser import ToolParser


class OutputParser:
    """Reads one answer: its reasoning first, calls in what follows."""

    def __init__(
        self, reasoning: ReasoningParser | None, calls: ToolParser | None, *, is_parallel: bool = True
    ) -> None:
        """Begin. `is_parallel`: calls after the first are given out."""
        self._reasoning = reasoning
        self._calls = calls
        self._is_parallel = is_parallel

    def push(self, text: str) -> list[OutputPart]:
        """Take the next text; return what became known by it."""
        split = self._reasoning.push(text) if self._reasoning is not None else ReasoningSplit("", text)
        return self._parts(split, is_last=False)

    def finish(self) -> list[OutputPart]:
        """Return what was held back; no more text comes."""
        split = self._reasoning.finish() if self._reasoning is not None else ReasoningSplit("", "")
        return self._parts(split, is_last=True)

    def _parts(self, split: ReasoningSplit, *, is_last: bool) -> list[OutputPart]:
        parts: list[OutputPart] = [Reasoning(split.reasoning)] if split.reasoning else []
        if self._calls is None:
            parts += [Content(split.rest)] if split.rest else []
        else:
            parts += self._calls.push(split.rest) if split.rest else []
            parts += self._calls.finish() if is_last else []
        if self._is_parallel:
            return parts
        of_call = CallStart | CallArguments | CallEnd
        return [part for part in parts if not isinstance(part, of_call) or part.call_index == 0]
