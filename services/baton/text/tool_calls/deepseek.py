"""DeepSeek V3, R1 (`function<｜tool▁sep｜>NAME`, arguments in a fence), V3.1 (`NAME<｜tool▁sep｜>{...}`), Kimi K2."""

from __future__ import annotations

import re

from baton.text.tool_calls.json_calls import JsonCallParser
from baton.text.tool_calls.parser import State

_HEADER = re.compile(
    r"\s{0,8}(?:function<｜tool▁sep｜>(?P<old>[\w.:/-]{1,128})\s{0,8}```json\s{0,8}"
    r"|(?P<new>(?!function<)[\w.:/-]{1,128})<｜tool▁sep｜>\s{0,8})(?=\{)"
)
_LONGEST_HEADER = 256
"""Characters after which what is held is no header."""


class DeepSeekParser(JsonCallParser):
    """Reads calls between markers of their own, all of them between two more."""

    BEGIN, CLOSE, ALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
    MARKERS = ("<｜tool▁calls▁begin｜>", BEGIN)
    HEADER = _HEADER

    def _after_marker(self, marker: str) -> State:
        return self._read_header if marker == self.BEGIN else self._between_calls

    def _read_header(self) -> State | None:
        if header := self.HEADER.match(self._buffer):
            self._take(header.end())
            return self._stream_call(next(filter(None, header.groups())))
        is_none = self._is_ended or self.CLOSE in self._buffer or len(self._buffer) > _LONGEST_HEADER
        return self._give_up() if is_none else None

    def _read_tail(self) -> State | None:
        """Read the end of a fence, if there is one."""
        return None if self._expect("```") is None else self._after_call

    def _after_call(self) -> State | None:
        return None if self._expect(self.CLOSE) is None else self._between_calls

    def _between_calls(self) -> State | None:
        begins = self._expect(self.BEGIN)
        if begins:
            self._opening += begins
            return self._read_header
        ends = self._expect(self.ALL_END) if not self._opening else ""
        if begins is None or ends is None:
            return None
        return self._read_text if ends else self._give_up()


class KimiParser(DeepSeekParser):
    """Reads `functions.NAME:0` and arguments between markers of Kimi's."""

    BEGIN, CLOSE, ALL_END = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"
    MARKERS = ("<|tool_calls_section_begin|>", BEGIN)
    HEADER = re.compile(
        r"\s{0,8}(?:functions\.)?([\w./-]{1,128})(?::\d{1,9})?\s{0,8}<\|tool_call_argument_begin\|>\s{0,8}(?=\{)"
    )
