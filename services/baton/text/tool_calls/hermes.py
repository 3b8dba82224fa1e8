"""Hermes, Qwen 2.5 and Qwen 3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

from baton.text.tool_calls.json_calls import JsonCallParser
from baton.text.tool_calls.parser import State


class HermesParser(JsonCallParser):
    """Reads a JSON object between two marks, once per call."""

    MARKS = ("<tool_call>",)
    CLOSE = "</tool_call>"

    def _after_mark(self, mark: str) -> State:  # noqa: ARG002
        return self._read_space

    def _after_call(self) -> State | None:
        return None if self._expect(self.CLOSE) is None else self._read_text
