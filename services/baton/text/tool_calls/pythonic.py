"""Llama 4 and other models that write Python: `[get_weather(city="Paris"), now()]`."""

from __future__ import annotations

import ast
import json
import re
import warnings

from baton.text.tool_calls.brackets import BracketScanner
from baton.text.tool_calls.parser import MarkedParser, State

_NAME = re.compile(r"\s{0,32}([A-Za-z_][\w.-]{0,127})\(")
_LONGEST_NAME = 192
"""Characters after which what is held is no name with its parenthesis."""


class PythonicParser(MarkedParser):
    """Reads a list of calls at the beginning of an answer, or after the marker; each call comes out whole.

    Without markers an answer is calls only if it begins with one of a tool of the request.
    """

    MARKERS = ("<|python_start|>", "<|python_end|>")

    def _begin(self) -> State | None:
        return self._begin_unmarked("[", self._read_name, is_dropped=True)

    def _after_marker(self, marker: str) -> State:
        if marker == "<|python_end|>":
            self._opening = ""
            return self._read_text
        return self._read_bracket

    def _read_bracket(self) -> State | None:
        bracket = self._expect("[")
        if bracket:
            self._opening += bracket
            return self._read_name
        return None if bracket is None else self._give_up()

    def _read_name(self) -> State | None:
        if match := _NAME.match(self._buffer):
            if match[1] not in self._tools:
                return self._give_up()
            self._scanner, self._num_scanned = BracketScanner(is_python=True), 0
            return self._read_call
        is_none = self._is_ended or len(self._buffer) > _LONGEST_NAME or self._buffer.lstrip()[:1] in ("[", "{", "]")
        return self._give_up() if is_none else None

    def _read_call(self) -> State | None:
        num_further = self._scanner.feed(self._buffer[self._num_scanned :])
        if num_further is None:
            self._num_scanned = len(self._buffer)
            return self._give_up() if self._is_ended else None
        length = self._num_scanned + num_further
        call = _parse_call(self._buffer[:length])
        if call is None:
            return self._give_up()
        self._take(length)
        self._add_call(*call)
        return self._after_call

    def _after_call(self) -> State | None:
        return self._after_listed(self._read_name)


def _parse_call(text: str) -> tuple[str, str] | None:
    """Return name and arguments of a call with keywords and literals; None for any other code."""
    name, _, arguments = text.partition("(")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's unknown escapes are no news
            call = ast.parse(f"f({arguments.strip()}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        values = {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg is not None}
        encoded = json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return (name.strip(), encoded) if len(values) == len(call.keywords) else None


def _literal(node: ast.expr) -> object:
    """Return a literal's value; models also write JSON's names for constants."""
    if isinstance(node, ast.Name) and node.id in _JSON_CONSTANTS:
        return _JSON_CONSTANTS[node.id]
    if isinstance(node, ast.List):
        return [_literal(element) for element in node.elts]
    if isinstance(node, ast.Dict):
        return {
            ast.literal_eval(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key
        }
    return ast.literal_eval(node)


_JSON_CONSTANTS: dict[str, object] = {"true": True, "false": False, "null": None}
