"""What `baton up` shows of processes while they start: warnings as they are, of the rest what each did last."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

import psutil
from rich.text import Text

from baton.agent.child import OnLine
from baton.config.memory_budget import told

_RECORD = re.compile(r'^\S+Z (?P<level>[A-Z]+) +\S+ +(?P<event>[a-z_]+)|^\{.*?"level": "(?P<json_level>\w+)"')
"""A line of a child that is a log record, as text or as JSON; tracebacks and what libraries print are none."""
_SHOWN_LEVELS = ("WARNING", "ERROR", "CRITICAL")
_LARGE_BYTES = 1 << 30
"""Weights beyond this take so long that their bytes are counted."""


class QuietLines:
    """Hands on what children warn of, with the tracebacks behind it, and keeps the rest to itself."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._is_shown: dict[str, bool] = {}
        self.events: dict[str, str] = {}
        """What each child logged last, in words."""

    def __call__(self, name: str, line: str) -> None:
        """Take a line of a child."""
        if record := _RECORD.match(line):
            level = record["level"] or record["json_level"].upper()
            self._is_shown[name] = level in _SHOWN_LEVELS
            self.events[name] = (record["event"] or "").replace("_", " ")
        if self._is_shown.get(name, False):
            self._on_line(name, line)


class StartingLine:
    """A line that says who is still starting, for how long, and how far it is; it changes as it is shown.

    `weight_bytes` has those that a process loads into main memory; `process_id` returns 0 where one does not run.
    """

    def __init__(
        self,
        names: Sequence[str],
        events: Mapping[str, str],
        weight_bytes: Mapping[str, int],
        process_id: Callable[[str], int],
    ) -> None:
        self._waiting = list(names)
        self._events = events
        self._weight_bytes = weight_bytes
        self._process_id = process_id
        self._began_seconds = time.monotonic()

    def finish(self, name: str) -> None:
        """Leave a process out: it has started."""
        self._waiting.remove(name)

    def __rich__(self) -> Text:
        """Return the line as it is now, cut where the terminal ends."""
        seconds = time.monotonic() - self._began_seconds
        parts = [f"{name} ({self._progress(name)})" for name in self._waiting]
        return Text(f"{seconds:.0f} s, waiting for {', '.join(parts)}", style="dim", overflow="ellipsis", no_wrap=True)

    def _progress(self, name: str) -> str:
        event, size = self._events.get(name, "starts"), self._weight_bytes.get(name, 0)
        if size < _LARGE_BYTES or event == "model loaded":
            return event
        try:
            resident = psutil.Process(self._process_id(name)).memory_info().rss
        except psutil.Error:
            return event
        return f"{told(resident)} of {told(size)}"
