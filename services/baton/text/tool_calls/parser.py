"""The base of all tool parsers: text goes in as it comes, parts of the answer come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from baton.text.markers import find_marker, length_before_partial_marker
from baton.text.output_parts import CallArguments, CallEnd, CallStart, Content, OutputPart
from baton.text.tools import Tool


class State(Protocol):
    """One state of a parser, which reads from the parser's buffer."""

    def __call__(self) -> State | None:
        """Take what the state can; return the next state, or None to wait for text."""


class ToolParser(ABC):
    """A state machine over a buffer.

    Invariants, kept by the states: what they decide depends on the text alone, never on where its parts were cut;
    text leaves the buffer exactly once, as a part or as a marker of a call that was understood.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self._buffer = ""
        self._is_ended = False
        self._parts: list[OutputPart] = []
        self._num_calls = 0
        self._state: State = self._begin

    def push(self, text: str) -> list[OutputPart]:
        """Take the next text; return what became known by it."""
        self._buffer += text
        return self._run()

    def finish(self) -> list[OutputPart]:
        """Return what was held back; no more text comes."""
        self._is_ended = True
        return self._run()

    @abstractmethod
    def _begin(self) -> State | None:
        """Run the first state; return the next one, or None to wait for text."""

    def _run(self) -> list[OutputPart]:
        while (state := self._state()) is not None:
            self._state = state
        parts, self._parts = self._parts, []
        return parts

    def _take(self, length: int) -> str:
        """Remove the beginning of the buffer and return it."""
        taken, self._buffer = self._buffer[:length], self._buffer[length:]
        return taken

    def _expect(self, marker: str) -> str | None:
        """Remove a marker with the space before it; return what was removed, "" if nothing, None while that is open."""
        stripped = self._buffer.lstrip()
        if stripped.startswith(marker):
            return self._take(len(self._buffer) - len(stripped) + len(marker))
        if marker.startswith(stripped):
            if not self._is_ended:
                return None
            if stripped and self._num_calls:
                self._take(len(self._buffer))  # what a limit has left of the marker
        return ""

    def _take_certain(self, ends: Sequence[str]) -> str:
        """Remove the text before what may become one of the markers, or all where no more comes; return it."""
        return self._take(len(self._buffer) if self._is_ended else length_before_partial_marker(self._buffer, ends))

    def _add_content(self, text: str) -> None:
        if text:
            self._parts.append(Content(text))

    def _start_call(self, name: str) -> None:
        self._parts.append(CallStart(self._num_calls, name))
        self._num_calls += 1

    def _add_arguments(self, text: str) -> None:
        if text:
            self._parts.append(CallArguments(self._num_calls - 1, text))

    def _end_call(self) -> None:
        self._parts.append(CallEnd(self._num_calls - 1))

    def _add_call(self, name: str, arguments: str) -> None:
        self._start_call(name)
        self._add_arguments(arguments)
        self._end_call()


class MarkedParser(ToolParser):
    """Parser of a format that opens its calls with markers in running text.

    White space before a marker is part of the call's notation; it is given out if no call follows.
    """

    MARKERS: tuple[str, ...]
    """What may open calls."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__(tools)
        self._opening = ""
        """White space and marker of the call that is being read, for the case that it is none."""

    def _begin(self) -> State | None:
        return self._read_text

    def _start_call(self, name: str) -> None:
        self._opening = ""
        super()._start_call(name)

    def _read_text(self) -> State | None:
        found = find_marker(self._buffer, self.MARKERS)
        if found is not None:
            text = self._take(found.end)
            content = text[: found.start].rstrip()
            self._add_content(content)
            self._opening = text[len(content) :]
            return self._after_marker(found.marker)
        num_certain = length_before_partial_marker(self._buffer, self.MARKERS)
        if self._is_ended:
            rest = self._take(len(self._buffer))
            self._add_content(rest if not self._num_calls else rest[:num_certain].rstrip())
            return None
        self._add_content(self._take(len(self._buffer[:num_certain].rstrip())))
        return None

    def _begin_unmarked(self, bracket: str, read_call: State, *, is_dropped: bool) -> State | None:
        """Run the first state of a format whose calls may begin an answer, without a marker, by a bracket."""
        stripped = self._buffer.lstrip()
        if not stripped:
            return self._read_text if self._is_ended else None
        if stripped[0] != bracket:
            return self._read_text
        self._opening = self._take(len(self._buffer) - len(stripped) + is_dropped)
        return read_call

    def _after_listed(self, read_next: State, separator: str = ",", end: str = "]") -> State | None:
        """Return what reads the next call of a list, or the text behind it; None until that is known."""
        has_more = self._expect(separator)
        if has_more:
            self._opening = has_more
            return read_next
        ends = self._expect(end)
        return None if has_more is None or ends is None else self._read_text

    @abstractmethod
    def _after_marker(self, marker: str) -> State:
        """Return the state that reads what a marker opened."""

    def _give_up(self) -> State:
        """Give out as content what was taken for the opening of a call; what follows is read as text."""
        self._add_content(self._opening)
        self._opening = ""
        return self._read_text
