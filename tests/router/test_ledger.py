"""Recent placements."""

from __future__ import annotations

from baton.capacity.estimate import Candidate
from baton.router.ledger import Ledger, PlacedRequest

PLACED = PlacedRequest(Candidate("mac", ""), 10, 0.01)


def test_a_placement_is_taken_once() -> None:
    """The second outcome of the same name finds nothing."""
    ledger = Ledger()
    ledger.add("p", PLACED)

    assert ledger.take("p") is PLACED
    assert ledger.take("p") is None


def test_the_oldest_placement_goes_first() -> None:
    """The ledger is bounded."""
    ledger = Ledger(max_entries=2)
    for placement_id in "abc":
        ledger.add(placement_id, PLACED)

    assert [ledger.take(placement_id) for placement_id in "abc"] == [None, PLACED, PLACED]
