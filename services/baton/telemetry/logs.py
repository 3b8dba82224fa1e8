"""Logging: one readable line per event on stderr: time, level, service, event key=value ..."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

_COLORS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}
"""SGR code per level; INFO stays plain."""

_NOISY = ("grpc", "asyncio", "urllib3", "httpx", "transformers", "filelock")
"""Libraries that only report from WARNING on."""


def configure_logging(service: str, level: str = "info", *, stream: TextIO | None = None) -> None:
    """Send the events of this process to a stream, replacing what was configured before.

    Args:
        service: Name at the front of each line, e.g. "router" or a node id.
        level: "debug", "info", "warning" or "error"; upper or lower case.
        stream: Where to write; stderr unless given. Coloured only if it is a terminal.

    Raises:
        ValueError: If the level is unknown.
    """
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(LineFormatter(service, is_colored=target.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """Formats a record as `2026-11-20T20:55:53.123Z INFO  router   event key=value`, a traceback on the lines below."""

    def __init__(self, service: str, *, is_colored: bool) -> None:
        super().__init__()
        self._service = service
        self._is_colored = is_colored

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = f"{moment}.{int(record.msecs):03d}Z {record.levelname:<7} {self._service:<11} {record.getMessage()}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        color = _COLORS.get(record.levelno)
        return f"\x1b[{color}m{line}\x1b[0m" if self._is_colored and color else line
