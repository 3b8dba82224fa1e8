"""How many wrong tokens an address may try."""

from __future__ import annotations

import pytest

from baton.errors import OverloadedError
from baton.router.join_verification import MAX_ADDRESSES, MAX_FAILURES, WINDOW_SECONDS, AttemptLimit


def test_an_address_that_failed_often_waits_and_others_do_not() -> None:
    """After the window it may try again."""
    now = 0.0
    limit = AttemptLimit(lambda: now)
    for _ in range(MAX_FAILURES):
        limit.check("10.0.0.7")
        limit.note_failure("10.0.0.7")

    with pytest.raises(OverloadedError, match=r"10\.0\.0\.7; again in 60 s"):
        limit.check("10.0.0.7")
    limit.check("10.0.0.8")
    now = WINDOW_SECONDS

    limit.check("10.0.0.7")


def test_the_memory_for_addresses_is_bounded() -> None:
    """The one that failed longest ago is forgotten."""
    limit = AttemptLimit(lambda: 0.0)
    for _ in range(MAX_FAILURES):
        limit.note_failure("first")
    for index in range(MAX_ADDRESSES):
        limit.note_failure(str(index))

    limit.check("first")
