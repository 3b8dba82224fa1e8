"""Streams that share what carries them."""

from __future__ import annotations

import pytest

from baton.capacity.kv_transfer import Stream, slowdown

RATE = 1e9


def stream(ready: float, later: float = 0.0, begin: float = 0.0, end: float = 0.0) -> Stream:
    """Return a stream of so many bytes that are computed, or will be."""
    return Stream(ready, later, begin, end, "p", "d")


def test_a_stream_alone_takes_what_it_takes() -> None:
    """Also beside one that has nothing to send any more."""
    assert slowdown(1e9, RATE, 0.0, 0.5, []) == 1.0
    assert slowdown(1e9, RATE, 0.0, 0.5, [stream(0.0)]) == 1.0


def test_two_streams_that_are_there_take_twice_as_long() -> None:
    """A longer one is not waited for to its end; of a shorter one all is."""
    assert slowdown(1e9, RATE, 0.0, 0.0, [stream(1e9)]) == pytest.approx(2.0)
    assert slowdown(1e9, RATE, 0.0, 0.0, [stream(9e9)]) == pytest.approx(2.0)
    assert slowdown(1e9, RATE, 0.0, 0.0, [stream(5e8)]) == pytest.approx(1.5)


def test_what_is_sent_by_then_is_not_met() -> None:
    """One second of waiting is one second of sending."""
    assert slowdown(1e9, RATE, 1.0, 0.0, [stream(1e9)]) == 1.0
    assert slowdown(1e9, RATE, 0.5, 0.0, [stream(1e9)]) == pytest.approx(1.5)


def test_what_is_computed_afterwards_is_not_met() -> None:
    """A stream that begins after this one has ended does not slow it."""
    assert slowdown(1e9, RATE, 0.0, 0.0, [stream(0.0, 1e9, 5.0, 6.0)]) == 1.0


def test_a_stream_that_is_computed_slowly_leaves_room() -> None:
    """At a tenth of the rate it meets a ninth of the other."""
    assert slowdown(1e8, RATE, 0.0, 1.0, [stream(9e7)]) == pytest.approx(1.1)
