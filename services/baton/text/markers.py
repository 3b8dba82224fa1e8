"""Markers and stop strings: found across the borders of the parts in which a model's output comes."""

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


class Scan(NamedTuple):
    """What `StopScanner.push` learnt from one more part of the text."""

    text: str
    """Text that can be shown: no stop string begins in it."""
    stop: str | None
    """The stop string that ended the text; None while it goes on."""


class StopScanner:
    """Finds the first stop string of a text that arrives in parts.

    The result does not depend on where the parts are cut: the text ends with the stop string that is complete first,
    and of those that are complete at the same character, the longest. Text that may begin a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""

    def push(self, text: str) -> Scan:
        """Take the next part; return what can be shown. After a stop string nothing more may be pushed."""
        if not self._stops:
            return Scan(text, None)
        buffer = self._held + text
        match = self._first_match(buffer)
        if match is not None:
            start, stop = match
            self._held = ""
            return Scan(buffer[:start], stop)
        num_shown = len(buffer) - self._held_length(buffer)
        self._held = buffer[num_shown:]
        return Scan(buffer[:num_shown], None)

    def flush(self) -> str:
        """Return the text held back; the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = buffer.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _held_length(self, buffer: str) -> int:
        """Return the length of the longest end of the buffer that begins a stop string."""
        longest = 0
        for stop in self._stops:
            start = buffer.find(stop[0], max(0, len(buffer) - len(stop) + 1))
            while start >= 0 and len(buffer) - start > longest:
                if stop.startswith(buffer[start:]):
                    longest = len(buffer) - start
                    break
                start = buffer.find(stop[0], start + 1)
        return longest
