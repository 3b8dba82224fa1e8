"""Log lines."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest
from opentelemetry import trace

from baton.telemetry.logs import JsonFormatter, LineFormatter, configure_logging


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
def test_a_client_that_has_left_is_no_error() -> None:
    """What gRPC logs of it is dropped, with its traceback; what else gRPC reports is not."""
    stream = io.StringIO()
    configure_logging("router", stream=stream)

    log = logging.getLogger("grpc._cython.cygrpc")
    log.error("ExecuteBatchError raised in core by servicer method [/baton.v1.GenerationService/Generate]")
    log.error("Unexpected [KeyError] raised by servicer method [/baton.v1.GenerationService/Generate]")

    assert len(stream.getvalue().splitlines()) == 1
    assert "KeyError" in stream.getvalue()


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


_SPAN = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=False))


def test_an_event_of_a_traced_request_names_its_trace() -> None:
    """From a line in the log to the waterfall, in either format; other events have none."""
    record = _record(logging.INFO, "placed node_id=decode-1")
    with trace.use_span(_SPAN):
        line = LineFormatter("x", is_colored=False).format(record)
        document = json.loads(JsonFormatter("x").format(record))

    assert line.endswith(f"placed node_id=decode-1 trace_id={0xABC:032x}")
    assert (document["trace_id"], document["span_id"]) == (f"{0xABC:032x}", f"{0xDEF:016x}")
    assert "trace_id" not in LineFormatter("x", is_colored=False).format(record)
    assert "trace_id" not in json.loads(JsonFormatter("x").format(record))


@pytest.mark.usefixtures("_root_logger")
def test_json_has_the_fields_of_an_event() -> None:
    """One object per line, quoted values without their quotes."""
    stream = io.StringIO()
    configure_logging("router", "info", log_format="json", stream=stream)

    logging.getLogger("baton.router").warning("node_left node_id=%s cause=%r", "decode-1", "no answer for 3 s")

    (line,) = stream.getvalue().splitlines()
    document = json.loads(line)
    assert (document["level"], document["service"], document["logger"]) == ("warning", "router", "baton.router")
    assert document["event"] == "node_left"
    assert document["fields"] == {"node_id": "decode-1", "cause": "no answer for 3 s"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document["time"])


def test_json_keeps_what_is_no_event() -> None:
    """Prose of a library, and the traceback of an error, in the same line."""
    record = _record(logging.ERROR, "it went wrong:\n3 times")
    try:
        raise RuntimeError("the cause")
    except RuntimeError as error:
        record.exc_info = (RuntimeError, error, error.__traceback__)

    line = JsonFormatter("x").format(record)

    assert "\n" not in line
    assert json.loads(line)["message"] == "it went wrong:\n3 times"
    assert "RuntimeError: the cause" in json.loads(line)["exception"]
    assert "event" not in json.loads(line)
