"""Markers: strings with a meaning in a model's output, found across the borders of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class MarkerMatch(NamedTuple):
    """A marker in a text."""

    start: int
    """Where it begins."""
    marker: str

    @property
    def end(self) -> int:
        """Return where the text after it begins."""
        return self.start + len(self.marker)


def find_marker(text: str, markers: Sequence[str]) -> MarkerMatch | None:
    """Return the first of several markers in a text, the longest of those that begin there; None if there is none."""
    best: MarkerMatch | None = None
    for marker in markers:
        start = text.find(marker) if best is None else text.find(marker, 0, best.start + len(marker))
        if start >= 0 and (best is None or (start, -len(marker)) < (best.start, -len(best.marker))):
            best = MarkerMatch(start, marker)
    return best


def length_before_partial_marker(text: str, markers: Sequence[str]) -> int:
    """Return how much of a text is certain: no marker can begin in it whose rest is still to come."""
    firsts = {marker[0] for marker in markers}
    for start in range(max(0, len(text) - max(map(len, markers)) + 1), len(text)):
        if text[start] in firsts and any(marker.startswith(text[start:]) for marker in markers):
            return start
    return len(text)
