"""Server-sent events from bytes that come in any pieces."""

from __future__ import annotations


class SseParser:
    """Splits a stream into events; a line may end with LF or CRLF and be cut anywhere.

    Invariant: `_rest` holds the bytes of the unfinished line, `_data` the data lines of the unfinished event.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        """Take bytes and return the events that they complete, in order: `data:` lines joined by line feeds."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events = []
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", errors="replace")
            if text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))
            elif not text and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
