"""The rate of a link, from two timed calls."""

from __future__ import annotations

import pytest

from baton.decode.peers import link_bytes_per_second


def test_a_round_trip_is_no_transfer() -> None:
    """What an empty call takes is taken off."""
    assert link_bytes_per_second(1000, 1.25, 0.25) == 1000.0


@pytest.mark.parametrize("round_trip_seconds", [0.9, 1.0, 7.0])
def test_a_slow_empty_call_does_not_make_a_link_infinitely_fast(round_trip_seconds: float) -> None:
    """At most twice the rate that was seen."""
    assert link_bytes_per_second(1000, 1.0, round_trip_seconds) == 2000.0
