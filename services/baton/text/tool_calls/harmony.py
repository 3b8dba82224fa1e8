"""GPT-OSS: `<|channel|>analysis<|message|>...<|end|>`, calls `to=functions.NAME` (openai/harmony, docs/format.md)."""

from __future__ import annotations

import re

from baton.text.markers import find_marker
from baton.text.output_parts import Content, Reasoning
from baton.text.tool_calls.parser import State, ToolParser

_CHANNEL, _START, _MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
_BODY_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START)
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
_LONGEST_HEADER = 512
"""Characters after which what is held is no header."""


class HarmonyParser(ToolParser):
    """Reads an answer of several messages; an answer without their markers is content."""

    MARKERS = (_CHANNEL, _START)

    def _begin(self) -> State | None:
        stripped = self._buffer.lstrip()
        if any(stripped.startswith(marker) for marker in self.MARKERS):
            return self._read_header
        is_open = any(marker.startswith(stripped) for marker in self.MARKERS) and not self._is_ended
        return None if is_open else self._open_body("")

    def _read_header(self) -> State | None:
        found = find_marker(self._buffer, (_MESSAGE,))
        if found is not None:
            return self._open_body(self._take(found.end)[: found.start])
        if self._is_ended or len(self._buffer) > _LONGEST_HEADER:
            self._add_content(self._take(len(self._buffer)))
        return None

    def _open_body(self, header: str) -> State:
        recipient = _RECIPIENT.search(header)
        self._is_call = recipient is not None and bool(self._tools)
        self._is_reasoning = "analysis" in header and not self._is_call
        if recipient is not None and self._is_call:
            self._start_call(recipient[1])
        return self._read_body

    def _read_body(self) -> State | None:
        found = find_marker(self._buffer, _BODY_ENDS)
        if found is None:
            self._add(self._take_certain(_BODY_ENDS))
            if self._is_ended:
                self._close()
            return None
        self._add(self._take(found.start))
        self._close()
        if found.marker != _START:
            self._take(len(found.marker))
        return self._begin

    def _add(self, text: str) -> None:
        if self._is_call:
            self._add_arguments(text)
        elif text:
            self._parts.append(Reasoning(text) if self._is_reasoning else Content(text))

    def _close(self) -> None:
        if self._is_call:
            self._end_call()
            self._is_call = False
