"""Calls whose arguments stand in tags.

Qwen3-Coder: `<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`.
GLM 4.5 to 4.7: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>`.
MiniMax M2: `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">value</parameter></invoke>` and its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from baton.text.markers import find_marker
from baton.text.tool_calls.parser import MarkedParser, State

_CALL, _CALL_END = "<tool_call>", "</tool_call>"
_LONGEST_NAME = 160
"""Characters after which what is held is no name."""


class QwenCoderParser(MarkedParser):
    """Turns tagged parameters into a JSON object; those that are strings are passed on while they come.

    A value's type is that of the tool's schema; one without a type, or that does not parse, is a string.
    """

    MARKERS: tuple[str, ...] = (_CALL, "<function=")
    FUNCTION, PARAMETER, FUNCTION_END = "<function=", "<parameter=", "</function>"
    NAME = KEY = re.compile(r"([^<>\n]{1,128})>\n?")
    VALUE_ENDS: tuple[str, ...] = ("\n</parameter>", "</parameter>")

    def _after_marker(self, marker: str) -> State:
        return self._read_name if marker == self.FUNCTION else self._read_function

    def _read_function(self) -> State | None:
        follows = self._expect(self.FUNCTION)
        if follows:
            self._opening += follows
            return self._read_name
        return None if follows is None else self._give_up()

    def _read_name(self) -> State | None:
        if match := self._match(self.NAME):
            self._take(match.end())
            self._start_call(match[1])
            self._function, self._num_parameters = match[1], 0
            self._add_arguments("{")
            return self._between_parameters
        is_none = self._is_ended or len(self._buffer) > _LONGEST_NAME or "\n" in self._buffer.partition(">")[0]
        return self._give_up() if is_none else None

    def _match(self, name: re.Pattern[str]) -> re.Match[str] | None:
        """Return a name up to its bracket and line end; None while the line end may still come."""
        match = name.match(self._buffer)
        return match if match and (match.end() < len(self._buffer) or self._is_ended) else None

    def _between_parameters(self) -> State | None:
        begins = self._expect(self.PARAMETER)
        if begins:
            return self._read_key
        ends = self._expect(self.FUNCTION_END)
        if begins is None or ends is None:
            return None
        if self._is_ended and not self._buffer.strip():  # the token limit cut the call
            return self._drop_rest
        self._add_arguments("}")
        self._end_call()
        return self._after_function

    def _drop_rest(self) -> State | None:
        self._take(len(self._buffer))
        return None

    def _after_function(self) -> State | None:
        return None if self._expect(_CALL_END) is None else self._read_text

    def _read_key(self) -> State | None:
        match = self._match(self.KEY)
        if match is None:
            return self._drop_rest if self._is_ended else None
        self._take(match.end())
        self._add_arguments((", " if self._num_parameters else "") + json.dumps(match[1], ensure_ascii=False) + ": ")
        self._num_parameters += 1
        self._types = _types(self._tools[self._function].parameters if self._function in self._tools else {}, match[1])
        if self._types != {"string"}:
            return self._read_value
        self._add_arguments('"')
        return self._read_string

    def _read_string(self) -> State | None:
        """Pass on a string while it comes; the line end before its closing marker is not part of it."""
        found = find_marker(self._buffer, self.VALUE_ENDS)
        if found is None:
            self._add_arguments(_inner_json(self._take_certain(self.VALUE_ENDS)))
            return None
        self._add_arguments(_inner_json(self._take(found.end)[: found.start]) + '"')
        return self._between_parameters

    def _read_value(self) -> State | None:
        found = find_marker(self._buffer, self.VALUE_ENDS)
        if found is None:
            return self._drop_rest if self._is_ended else None
        self._add_arguments(_value_json(self._take(found.end)[: found.start], self._types))
        return self._between_parameters


class GlmParser(QwenCoderParser):
    """Reads keys and values in tags of their own; the name stands before them, or alone."""

    MARKERS = (_CALL,)
    PARAMETER, FUNCTION_END = "<arg_key>", _CALL_END
    NAME = re.compile(r"\s{0,8}([\w.:/-]{1,128})\s{0,8}(?=<arg_key>|</tool_call>)")
    KEY = re.compile(r"([^<>\n]{1,128})</arg_key>\s{0,8}<arg_value>")
    VALUE_ENDS = ("</arg_value>",)

    def _after_marker(self, marker: str) -> State:  # noqa: ARG002
        return self._read_name

    def _read_name(self) -> State | None:
        """Wait for a line end before the tags, where the other format has its name up to a line end."""
        is_open = re.match(r"\s*[\w.:/-]*\s*(<[/a-z_]*)?$", self._buffer) and len(self._buffer) <= _LONGEST_NAME
        return None if is_open and not self._is_ended else super()._read_name()

    def _after_function(self) -> State:
        return self._read_text


class MiniMaxParser(QwenCoderParser):
    """Reads several calls between one pair of markers; values stand in their tags as they are."""

    MARKERS = ("<minimax:tool_call>",)
    FUNCTION, PARAMETER, FUNCTION_END = "<invoke name=", "<parameter name=", "</invoke>"
    NAME = KEY = re.compile(r"[\"']?([^<>\"'\n]{1,128})[\"']?>")
    VALUE_ENDS = ("</parameter>",)

    def _after_function(self) -> State | None:
        return self._after_listed(self._read_name, self.FUNCTION, "</minimax:tool_call>")


def _types(schema: Mapping[str, object], key: str) -> set[str]:
    """Return the JSON types that a parameter may have; a string where the schema does not say."""
    properties = schema.get("properties")
    parameter = properties.get(key) if isinstance(properties, Mapping) else None
    if not isinstance(parameter, Mapping):
        return {"string"}
    kind = parameter.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {str(each) for each in kind}
    choices = parameter.get("enum")
    if isinstance(choices, list) and all(isinstance(choice, str) for choice in choices):
        return {"string"}
    return {"string"} if not parameter.keys() & {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"} else {"any"}


def _inner_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _value_json(text: str, types: set[str]) -> str:
    """Return a value as JSON: itself if it is of the right type, else a string."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    is_string = "string" in types and value is not None
    return json.dumps(text if is_string else value, ensure_ascii=False)
