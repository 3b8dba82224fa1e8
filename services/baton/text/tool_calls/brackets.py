"""Finds where a bracketed value ends that arrives in parts, without parsing it."""

from __future__ import annotations

import re

_OUTSIDE_JSON = re.compile(r'["{}\[\]]')
_OUTSIDE_PYTHON = re.compile(r"""["'{}\[\]()]""")
_INSIDE = {quote: re.compile(rf"[{quote}\\]") for quote in "\"'"}


class BracketScanner:
    """Follows brackets and strings. What is between them is not checked: what a model writes may be broken."""

    def __init__(self, *, depth: int = 0, is_python: bool = False) -> None:
        """Begin with `depth` open brackets; `is_python`: parentheses and single quotes count, unlike in JSON."""
        self._depth = depth
        self._outside = _OUTSIDE_PYTHON if is_python else _OUTSIDE_JSON
        self._quote = ""
        self._is_escaped = False

    def feed(self, text: str) -> int | None:
        """Take the next text; return the number of its characters up to the end of the value, None if it goes on."""
        position = 0
        if self._is_escaped and text:
            position, self._is_escaped = 1, False
        while match := (_INSIDE[self._quote] if self._quote else self._outside).search(text, position):
            position = match.end()
            character = match[0]
            if character == "\\":
                self._is_escaped = position == len(text)
                position += 1
            elif character in "\"'":
                self._quote = "" if self._quote else character
            else:
                self._depth += 1 if character in "{[(" else -1
                if self._depth <= 0:
                    return position
        return None
