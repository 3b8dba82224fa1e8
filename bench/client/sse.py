"""Server-sent events from bytes that come in any pieces."""

from __future__ import annotations

from typing import NamedTuple


class Event(NamedTuple):
    """One event or one comment of a stream."""

    data: str | None
    """The `data:` lines, joined by line feeds; None for a comment."""
    comment: str | None = None
    """What follows the colon of a comment line, without the space after it."""


class SseParser:
    """Splits a stream into events; a line may end with LF or CRLF and be cut anywhere.

    Invariant: `_rest` holds the bytes of the unfinished line, `_data` the data lines of the unfinished event.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Event]:
        """Take bytes and return the events and comments that they complete, in order."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            event = self._take_line(line.removesuffix(b"\r").decode("utf-8", errors="replace"))
            if event:
                events.append(event)
        return events

    def _take_line(self, line: str) -> Event | None:
        if line.startswith("data:"):
            self._data.append(line[5:].removeprefix(" "))
        elif line.startswith(":"):
            return Event(None, line[1:].removeprefix(" "))
        elif not line and self._data:
            event = Event("\n".join(self._data))
            self._data = []
            return event
        return None
