"""Log lines."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest

from baton.telemetry.logs import LineFormatter, configure_logging


@pytest.fixture
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _record(level: int, message: str) -> logging.LogRecord:
    return logging.LogRecord("baton.x", level, __file__, 1, message, None, None)


@pytest.mark.usefixtures("_root_logger")
def test_an_event_is_one_line_with_time_level_and_service() -> None:
    """The line can be read by a person and split by a machine."""
    stream = io.StringIO()
    configure_logging("router", "info", stream=stream)

    logging.getLogger("baton.router").info("node_joined node_id=%s", "decode-1")

    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    router      node_joined node_id=decode-1\n"
    assert re.fullmatch(pattern, stream.getvalue())


@pytest.mark.usefixtures("_root_logger")
def test_events_below_the_level_are_dropped() -> None:
    """DEBUG is silent at INFO, and libraries only speak from WARNING on."""
    stream = io.StringIO()
    configure_logging("router", "INFO", stream=stream)

    logging.getLogger("baton.router").debug("placed")
    logging.getLogger("transformers").info("chatter")

    assert stream.getvalue() == ""


@pytest.mark.usefixtures("_root_logger")
def test_an_unknown_level_is_refused() -> None:
    """A typing error does not turn logging off."""
    with pytest.raises(ValueError, match="LOUD"):
        configure_logging("router", "loud", stream=io.StringIO())


def test_colour_is_for_terminals() -> None:
    """Warnings are coloured only where it was asked for."""
    record = _record(logging.WARNING, "slow")

    assert LineFormatter("x", is_colored=True).format(record).startswith("\x1b[33m")
    assert "\x1b" not in LineFormatter("x", is_colored=False).format(record)


def test_a_traceback_follows_its_event() -> None:
    """The cause is not lost."""
    record = _record(logging.ERROR, "call_failed")
    try:
        raise RuntimeError("the cause")
    except RuntimeError as error:
        record.exc_info = (RuntimeError, error, error.__traceback__)

    assert "RuntimeError: the cause" in LineFormatter("x", is_colored=False).format(record)
