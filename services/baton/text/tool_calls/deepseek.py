"""DeepSeek V3 and R1 (`function<｜tool▁sep｜>NAME`, arguments in a fence) and V3.1 (`NAME<｜tool▁sep｜>{...}`)."""

from __future__ import annotations

import re

from baton.text.tool_calls.json_calls import JsonCallParser
from baton.text.tool_calls.parser import State

_CALL_BEGIN, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_ALL_END = "<｜tool▁calls▁end｜>"
_HEADER = re.compile(
    r"\s{0,8}(?:function<｜tool▁sep｜>(?P<old>[\w.:/-]{1,128})\s{0,8}```json\s{0,8}"
    r"|(?P<new>(?!function<)[\w.:/-]{1,128})<｜tool▁sep｜>\s{0,8})(?=\{)"
)
_LONGEST_HEADER = 256
"""Characters after which what is held is no header."""


class DeepSeekParser(JsonCallParser):
    """Reads calls between markers of their own, all of them between two more."""

    MARKERS = ("<｜tool▁calls▁begin｜>", _CALL_BEGIN)
    CLOSE = _CALL_END

    def _after_marker(self, marker: str) -> State:
        return self._read_header if marker == _CALL_BEGIN else self._between_calls

    def _read_header(self) -> State | None:
        if header := _HEADER.match(self._buffer):
            self._take(header.end())
            return self._stream_call(header["old"] or header["new"])
        is_none = self._is_ended or _CALL_END in self._buffer or len(self._buffer) > _LONGEST_HEADER
        return self._give_up() if is_none else None

    def _read_tail(self) -> State | None:
        """Read the end of a fence, if there is one."""
        return None if self._expect("```") is None else self._after_call

    def _after_call(self) -> State | None:
        return None if self._expect(_CALL_END) is None else self._between_calls

    def _between_calls(self) -> State | None:
        begins = self._expect(_CALL_BEGIN)
        if begins:
            self._opening += begins
            return self._read_header
        ends = self._expect(_ALL_END) if not self._opening else ""
        if begins is None or ends is None:
            return None
        return self._read_text if ends else self._give_up()
