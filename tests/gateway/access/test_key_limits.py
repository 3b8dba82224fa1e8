"""Limits of one API key."""

from __future__ import annotations

import pytest

from baton.errors import OverloadedError
from baton.gateway.access.key_limits import RETRY_AFTER_SECONDS, KeyLimits


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.seconds


def _ask(limits: KeyLimits, name: str = "a") -> None:
    with limits.slot(name):
        pass


def test_a_minutes_requests_may_come_at_once_and_then_at_the_rate() -> None:
    """A refusal says when the next one is due; waiting that long is enough, and a refused request costs nothing."""
    clock = Clock()
    limits = KeyLimits(requests_per_minute=20, max_concurrent_requests=0, clock=clock)
    for _ in range(20):
        _ask(limits)

    for _ in range(3):
        with pytest.raises(OverloadedError, match="20 requests per minute") as refusal:
            _ask(limits)
        assert refusal.value.metadata[RETRY_AFTER_SECONDS] == "3"
    clock.seconds += 3
    _ask(limits)
    with pytest.raises(OverloadedError):
        _ask(limits)


def test_no_more_than_a_minutes_requests_are_saved_up() -> None:
    """However long a key was silent."""
    clock = Clock()
    limits = KeyLimits(requests_per_minute=2, max_concurrent_requests=0, clock=clock)
    _ask(limits)
    clock.seconds += 86_400
    _ask(limits)
    _ask(limits)

    with pytest.raises(OverloadedError):
        _ask(limits)


def test_requests_in_work_are_bounded_and_end_with_their_context() -> None:
    """Also where the request fails."""
    limits = KeyLimits(requests_per_minute=0, max_concurrent_requests=1, clock=Clock())
    with pytest.raises(ZeroDivisionError), limits.slot("a"):
        raise ZeroDivisionError
    with limits.slot("a"), pytest.raises(OverloadedError, match="in work"):
        _ask(limits)

    _ask(limits)


def test_keys_have_accounts_of_their_own() -> None:
    """One that is used up leaves the others alone."""
    limits = KeyLimits(requests_per_minute=1, max_concurrent_requests=1, clock=Clock())
    with limits.slot("a"):
        _ask(limits, "b")

    for name in ("a", "b"):
        with pytest.raises(OverloadedError):
            _ask(limits, name)


def test_a_request_refused_for_those_in_work_does_not_count_for_the_rate() -> None:
    """It did no work."""
    limits = KeyLimits(requests_per_minute=2, max_concurrent_requests=1, clock=Clock())
    with limits.slot("a"), pytest.raises(OverloadedError, match="in work"):
        _ask(limits)

    _ask(limits)


def test_zero_means_any_number() -> None:
    """The settings' default."""
    limits = KeyLimits(requests_per_minute=0, max_concurrent_requests=0, clock=Clock())

    for _ in range(1000):
        _ask(limits)
