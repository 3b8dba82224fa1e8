"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, and since v11 `[TOOL_CALLS]NAME[ARGS]{...}`."""

from __future__ import annotations

import re

from baton.text.tool_calls.json_calls import JsonListParser
from baton.text.tool_calls.parser import State

_HEADER = re.compile(r"\s{0,8}([\w.:/-]{1,128})(?:\[CALL_ID\]\w{1,64})?(?:\[ARGS\])?\s{0,8}(?=\{)")
_LONGEST_HEADER = 256
"""Characters after which what is held is no header."""


class MistralParser(JsonListParser):
    """Reads a list of JSON objects, or a name and its arguments, after one marker."""

    MARKERS = ("[TOOL_CALLS]",)

    def _after_marker(self, marker: str) -> State:  # noqa: ARG002
        self._is_named = False
        return self._read_opening

    def _read_opening(self) -> State | None:
        stripped = self._buffer.lstrip()
        return self._read_name if stripped and stripped[0] not in "[{" else super()._read_opening()

    def _read_name(self) -> State | None:
        if header := _HEADER.match(self._buffer):
            self._take(header.end())
            self._is_named = True
            return self._stream_call(header[1])
        is_none = self._is_ended or len(self._buffer) > _LONGEST_HEADER
        return self._give_up() if is_none else None

    def _read_tail(self) -> State | None:
        return self._read_text if self._is_named else super()._read_tail()
