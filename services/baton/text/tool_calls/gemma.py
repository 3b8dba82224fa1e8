"""Gemma 4: `<|tool_call>call:NAME{city:<|"|>Paris<|"|>,days:2}<tool_call|>`."""

from __future__ import annotations

import json
import re

from baton.text.tool_calls.parser import MarkedParser, State

_END = "<tool_call|>"
_QUOTE = '<|"|>'
_CALL = re.compile(r"\s*call:([\w.:/-]{1,128})\s*(\{.*\})\s*", re.DOTALL)
_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:<>\"]+)\s*:")


class GemmaParser(MarkedParser):
    """Reads objects whose keys have no quotes, and whose strings have marks of their own; each call comes out whole.

    Arguments may be JSON, too: grammars make a model write them so.
    """

    MARKERS = ("<|tool_call>",)

    def _after_marker(self, marker: str) -> State:  # noqa: ARG002
        return self._read_call

    def _read_call(self) -> State | None:
        end = self._buffer.find(_END)
        if end < 0 and not self._is_ended:
            return None
        call = _CALL.fullmatch(self._buffer if end < 0 else self._buffer[:end])
        arguments = _arguments(call[2]) if call else None
        if call is None or arguments is None:
            return self._give_up()
        self._take(len(self._buffer) if end < 0 else end + len(_END))
        self._add_call(call[1], arguments)
        return self._read_text


def _arguments(text: str) -> str | None:
    """Return an object as JSON; None: it is none."""
    parts = text.split(_QUOTE)
    quoted = [json.dumps(part) if index % 2 else _KEY.sub(r'\1"\2":', part) for index, part in enumerate(parts)]
    for candidate in (text, "".join(quoted)):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else None
    return None
