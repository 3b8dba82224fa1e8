"""Llama 3: `{"name": ..., "parameters": {...}}`, after `<|python_tag|>` or alone; `;` between calls."""

from __future__ import annotations

from baton.text.tool_calls.json_calls import JsonCallParser
from baton.text.tool_calls.parser import State


class LlamaJsonParser(JsonCallParser):
    """Reads JSON objects at the beginning of an answer, or after the marker.

    Without markers an object is a call only if it names a tool of the request: an answer may be JSON by itself.
    """

    MARKERS = ("<|python_tag|>",)

    def _begin(self) -> State | None:
        return self._begin_unmarked("{", self._read_call, is_dropped=False)

    def _is_known(self, name: str) -> bool:
        return name in self._tools

    def _after_call(self) -> State | None:
        """Read a separator, or the next call that stands on a line of its own."""
        stripped = self._buffer.lstrip()
        if not stripped:
            return self._read_text if self._is_ended else None
        if stripped[0] not in ";,{":
            return self._read_text
        self._opening += self._take(len(self._buffer) - len(stripped) + (stripped[0] != "{"))
        return self._read_space
