"""A program whose last document counts."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from baton.node.sensors.apple import LASTING_SECONDS, DocumentStream
from node.polling import eventually


def _stream(code: str, end: bytes, clock: Callable[[], float] = lambda: 0.0) -> DocumentStream:
    return DocumentStream((sys.executable, "-uc", code), end, clock)


def test_the_last_whole_document_counts() -> None:
    """One that has only begun does not; the end belongs to its document."""
    stream = _stream(
        "import sys, time; sys.stdout.write('one</p>two</p>thr'); sys.stdout.flush(); time.sleep(60)", b"</p>"
    )
    try:
        found = eventually(stream.latest)
    finally:
        stream.close()

    assert found == b"two</p>"


def test_a_document_from_before_a_sleep_is_none() -> None:
    """What was true then says nothing about now."""
    now = 0.0
    stream = _stream("import time; print('one'); time.sleep(60)", b"\n", lambda: now)
    try:
        eventually(stream.latest)
        now = LASTING_SECONDS + 1

        assert stream.latest() is None
    finally:
        stream.close()


def test_a_program_that_ended_is_an_error() -> None:
    """With its status, so that a log explains why a machine has no sensor."""
    stream = _stream("raise SystemExit(3)", b"\n")

    def failure() -> OSError | None:
        try:
            stream.latest()
        except OSError as error:
            return error
        return None

    assert str(eventually(failure)).endswith("ended with status 3")


def test_a_program_that_does_not_exist_is_an_error() -> None:
    """As for any program."""
    with pytest.raises(OSError, match="no-such-program"):
        DocumentStream(("no-such-program",), b"\n")
