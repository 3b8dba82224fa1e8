"""Calls written as JSON objects, and formats that do no more; others build on `JsonCallParser`.

Hermes, Qwen 2.5 and 3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once per call; Falcon has a list.
Nemotron Nano 2: `<TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>`.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Sequence

from baton.text.tool_calls.brackets import BracketScanner
from baton.text.tool_calls.parser import MarkedParser, State
from baton.text.tools import Tool

_HEADER = re.compile(
    r'\{\s{0,32}"name"\s{0,32}:\s{0,32}"([\w.:/-]{1,128})"\s{0,32},\s{0,32}"(?:arguments|parameters)"\s{0,32}:\s{0,32}(?=\{)'
)
"""What precedes arguments that can be passed on as they come."""

_ARGUMENT_KEYS = ("arguments", "parameters")


class JsonCallParser(MarkedParser):
    """Reads calls that are JSON objects.

    Arguments are passed on verbatim while they come, if name and arguments stand in this order and nothing else is
    before them; any other object is held until it is complete.
    """

    CLOSE = ""
    """Mark that ends a call; one that comes before the object is complete ends a broken one."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools)
        self._scanner = BracketScanner()
        self._num_scanned = 0
        """Characters of the buffer that the scanner has seen, while an object is held."""

    def _after_marker(self, marker: str) -> State:  # noqa: ARG002
        return self._read_space

    @abstractmethod
    def _after_call(self) -> State | None:
        """Read what may follow a call."""

    def _is_known(self, name: str) -> bool:  # noqa: ARG002
        """Return whether a name is one that may be called; where calls have markers, those decide."""
        return True

    def _read_space(self) -> State | None:
        """Read the white space before the object of a call, after a marker, a bracket or a comma."""
        stripped = self._buffer.lstrip()
        if not stripped:
            return self._give_up() if self._is_ended else None
        self._opening += self._take(len(self._buffer) - len(stripped))
        return self._read_call

    def _read_call(self) -> State | None:
        """Read the object of a call from its first character."""
        if not self._buffer:
            return self._give_up() if self._is_ended else None
        if self._buffer[0] != "{":
            return self._give_up()
        self._scanner, self._num_scanned = BracketScanner(), 0
        return self._read_object

    def _read_object(self) -> State | None:
        if header := _HEADER.match(self._buffer):
            if not self._is_known(header[1]):
                return self._give_up()
            self._take(header.end())
            return self._stream_call(header[1])
        return self._read_whole()

    def _read_whole(self) -> State | None:
        """Read an object whose arguments cannot be passed on as they come."""
        close = self._buffer.find(self.CLOSE, max(0, self._num_scanned - len(self.CLOSE))) if self.CLOSE else -1
        num_further = self._scanner.feed(self._buffer[self._num_scanned :])
        length = None if num_further is None else self._num_scanned + num_further
        self._num_scanned = len(self._buffer)
        if close >= 0 and (length is None or close < length):
            return self._give_up()
        if length is None:
            return self._give_up() if self._is_ended else None
        call = _parse_call(self._buffer[:length])
        if call is None or not self._is_known(call[0]):
            return self._give_up()
        self._take(length)
        self._add_call(*call)
        return self._after_call

    def _stream_call(self, name: str) -> State:
        """Begin a call whose arguments follow in the buffer."""
        self._start_call(name)
        self._scanner = BracketScanner()
        return self._read_arguments

    def _read_arguments(self) -> State | None:
        """Pass on arguments up to the end of their object."""
        length = self._scanner.feed(self._buffer)
        if length is None:
            self._add_arguments(self._take(len(self._buffer)))
            return None
        self._add_arguments(self._take(length))
        self._end_call()
        return self._read_tail

    def _read_tail(self) -> State | None:
        """Drop the rest of a call's object: further keys and the closing brace, which models also forget."""
        stripped = self._buffer.lstrip()
        if not stripped:
            return self._after_call if self._is_ended else None
        if stripped[0] not in "},":
            return self._after_call
        self._scanner = BracketScanner(depth=1)
        return self._drop_tail

    def _drop_tail(self) -> State | None:
        length = self._scanner.feed(self._buffer)
        self._take(len(self._buffer) if length is None else length)
        return None if length is None else self._after_call


def _parse_call(text: str) -> tuple[str, str] | None:
    """Return name and arguments of a complete object; None if it is no call."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    function = call.get("function")
    if isinstance(function, dict):
        call = function
    name = call.get("name", function)
    arguments: object = next((call[key] for key in _ARGUMENT_KEYS if key in call), {})
    if not isinstance(name, str) or not name:
        return None
    if isinstance(arguments, str):
        return name, arguments
    return (name, json.dumps(arguments or {}, ensure_ascii=False)) if isinstance(arguments, dict | None) else None


class JsonListParser(JsonCallParser):
    """Reads a JSON object, or a list of such, between two markers, or after one."""

    _is_list = False

    def _after_marker(self, marker: str) -> State:  # noqa: ARG002
        return self._read_opening

    def _read_opening(self) -> State | None:
        stripped = self._buffer.lstrip()
        if not stripped:
            return self._give_up() if self._is_ended else None
        self._is_list = stripped[0] == "["
        self._opening += self._take(len(self._buffer) - len(stripped) + self._is_list)
        return self._read_space

    def _after_call(self) -> State | None:
        if self._is_list:
            following = self._after_listed(self._read_space)
            if following != self._read_text:
                return following
            self._is_list = False
        is_open = bool(self.CLOSE) and self._expect(self.CLOSE) is None
        return None if is_open else self._read_text


class HermesParser(JsonListParser):
    """Reads what Hermes and those after it write."""

    MARKERS = ("<tool_call>",)
    CLOSE = "</tool_call>"


class NemotronParser(JsonListParser):
    """Reads what Nemotron Nano 2 writes."""

    MARKERS = ("<TOOLCALL>",)
    CLOSE = "</TOOLCALL>"
