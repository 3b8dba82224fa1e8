"""Logging: one event per line on stderr, for people (time, level, service, event key=value ...) or as JSON."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import Literal, TextIO, get_args

from opentelemetry import trace

LogFormat = Literal["text", "json"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)

_COLORS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}
"""SGR code per level; INFO stays plain."""

_NOISY = ("grpc", "asyncio", "urllib3", "httpx", "transformers", "filelock")
"""Libraries that only report from WARNING on."""
_CLIENT_GONE = "ExecuteBatchError raised in core"
"""How gRPC reports, as an error with a traceback, that a client left as it was written to: 1 of 64,000 that leave."""
_FIELD = re.compile(r"""(?<!\S)([a-z_]\w*)=("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\S*)""")
"""key=value of an event; the value may be quoted."""


def configure_logging(
    service: str, level: str = "info", *, log_format: LogFormat = "text", stream: TextIO | None = None
) -> None:
    """Send the events of this process to a stream, replacing what was configured before.

    `service` is at the front of each line; `level` may be in upper case; only a terminal is coloured. Raises ValueError
    if the level is unknown.
    """
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    is_json = log_format == "json"
    handler.setFormatter(JsonFormatter(service) if is_json else LineFormatter(service, is_colored=target.isatty()))
    handler.addFilter(lambda record: not (record.name.startswith("grpc") and _CLIENT_GONE in record.getMessage()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it writes past all handlers, and warns of no use of ours
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)


class LineFormatter(logging.Formatter):
    """Formats a record as `2026-11-20T20:55:53.123Z INFO  router   event key=value`, a traceback on the lines below.

    What is logged while a request is traced ends with trace_id=...
    """

    def __init__(self, service: str, *, is_colored: bool) -> None:
        super().__init__()
        self._service = service
        self._is_colored = is_colored

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = f"{_moment(record)} {record.levelname:<7} {self._service:<11} {record.getMessage()}"
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line += f" trace_id={trace.format_trace_id(span.trace_id)}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        color = _COLORS.get(record.levelno)
        return f"\x1b[{color}m{line}\x1b[0m" if self._is_colored and color else line


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object.

    Its keys: time, level, service, logger, message; event and its fields where the message is one; trace_id and span_id
    while a request is traced; exception.
    """

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        message = record.getMessage()
        document: dict[str, object] = {
            "time": _moment(record),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": message,
        }
        if fields := {key: _unquoted(value) for key, value in _FIELD.findall(message)}:
            document |= {"event": message.split(maxsplit=1)[0], "fields": fields}
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            document["trace_id"] = trace.format_trace_id(span.trace_id)
            document["span_id"] = trace.format_span_id(span.span_id)
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def _moment(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
