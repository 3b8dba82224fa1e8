"""Limits of one API key per minute."""

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
    limits.check(name)
    limits.spend(name, num_requests=1)


def test_a_minutes_requests_may_come_at_once_and_then_at_the_rate() -> None:
    """A refusal says when the next one is due; waiting that long is enough, and a refused request costs nothing."""
    clock = Clock()
    limits = KeyLimits(requests_per_minute=20, tokens_per_minute=0, clock=clock)
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
    limits = KeyLimits(requests_per_minute=2, tokens_per_minute=0, clock=clock)
    _ask(limits)
    clock.seconds += 86_400
    _ask(limits)
    _ask(limits)

    with pytest.raises(OverloadedError):
        _ask(limits)


def test_tokens_that_one_request_overdraws_are_paid_before_the_next() -> None:
    """And the refusal says when they are."""
    clock = Clock()
    limits = KeyLimits(requests_per_minute=0, tokens_per_minute=600, clock=clock)
    limits.spend("a", num_tokens=1199)

    with pytest.raises(OverloadedError, match="600 tokens per minute") as refusal:
        _ask(limits)
    assert refusal.value.metadata[RETRY_AFTER_SECONDS] == "60"
    clock.seconds += 60
    _ask(limits)


def test_keys_have_accounts_of_their_own() -> None:
    """One that is used up leaves the others alone."""
    limits = KeyLimits(requests_per_minute=1, tokens_per_minute=0, clock=Clock())
    _ask(limits)
    _ask(limits, "b")

    for name in ("a", "b"):
        with pytest.raises(OverloadedError):
            _ask(limits, name)


def test_zero_means_any_number() -> None:
    """The settings' default."""
    limits = KeyLimits(requests_per_minute=0, tokens_per_minute=0, clock=Clock())

    for _ in range(1000):
        _ask(limits)
        limits.spend("a", num_tokens=10**9)
