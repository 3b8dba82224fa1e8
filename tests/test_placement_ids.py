"""Names of placements, and what nodes read of them."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from baton.placement_ids import PlacementIds, seconds_between


def test_names_of_a_router_ascend_though_the_clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is another one, and later by a nanosecond at least."""
    ids = PlacementIds()
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5)
    names = [ids.new() for _ in range(100)]

    assert sorted(set(names)) == names
    assert all(seconds_between(*each) == 1e-9 for each in pairwise(names))
    assert seconds_between(names[9], names[4]) == -5e-9


def test_names_do_not_tell_how_long_their_router_has_run() -> None:
    """Nor its machine: each begins anywhere."""
    moments = [int(PlacementIds().new()[16:], 16) for _ in range(2)]

    assert abs(moments[0] - moments[1]) > 10**9
    assert all(abs(each - time.monotonic_ns()) > 10**9 for each in moments)


@pytest.mark.parametrize("other", ["", "p-1", "f" * 32, "0" * 40, "0123456789abcdef0123456789abcdeg"])
def test_nobody_knows_which_of_two_routers_was_first(other: str) -> None:
    """Nor is a name of another kind compared."""
    name = PlacementIds().new()

    assert seconds_between(name, other) is None
    assert seconds_between(other, name) is None
