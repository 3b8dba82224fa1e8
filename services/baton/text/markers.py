"""Marks: strings with a meaning in a model's output, found across the borders of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class MarkerMatch(NamedTuple):
    """A mark in a text."""

    start: int
    """Where it begins."""
    mark: str

    @property
    def end(self) -> int:
        """Return where the text after it begins."""
        return self.start + len(self.mark)


def find_marker(text: str, marks: Sequence[str]) -> MarkerMatch | None:
    """Return the first of several marks in a text, the longest of those that begin there; None if there is none."""
    best: MarkerMatch | None = None
    for mark in marks:
        start = text.find(mark) if best is None else text.find(mark, 0, best.start + len(mark))
        if start >= 0 and (best is None or (start, -len(mark)) < (best.start, -len(best.mark))):
            best = MarkerMatch(start, mark)
    return best


def length_before_partial_marker(text: str, marks: Sequence[str]) -> int:
    """Return the length of the text's beginning in which no mark can begin whose rest is still to come."""
    firsts = {mark[0] for mark in marks}
    for start in range(max(0, len(text) - max(map(len, marks)) + 1), len(text)):
        if text[start] in firsts and any(mark.startswith(text[start:]) for mark in marks):
            return start
    return len(text)
