"""Placements in flight: those that no load report covers yet, and those whose outcome is awaited."""

from __future__ import annotations

from baton.capacity.placement import Candidate
from baton.capacity.snapshot import NodeLoad
from baton.router.in_flight import AssumedPlacements, AssumedWork, AwaitedOutcomes, PlacedRequest
from router.samples import Clock

FREE = NodeLoad(num_free_blocks=100)
WORK = AssumedWork(num_prompt_tokens=50, num_blocks=4)


def placed(clock: Clock) -> AssumedPlacements:
    """Return one remote placement, "p", of "dgx" for "mac"."""
    assumed = AssumedPlacements(clock, ttl_seconds=10.0)
    assumed.add("p", "mac", AssumedWork(0, 4))
    assumed.add_prefill("p", "dgx", WORK)
    return assumed


def test_a_placement_counts_on_both_nodes() -> None:
    """One more waiting request on each, with the work that falls to it."""
    assumed = placed(Clock())

    assert assumed.added_to("mac", FREE) == NodeLoad(num_waiting=1, num_free_blocks=96)
    assert assumed.added_to("dgx", FREE) == NodeLoad(1, 0, 50, 96)


def test_the_decode_node_s_report_covers_what_it_names() -> None:
    """A report without the placement leaves it; one that names it ends it."""
    assumed = placed(Clock())

    assumed.reported("mac", ["other"])
    assert assumed.added_to("mac", FREE).num_waiting == 1

    assumed.reported("mac", ["p"])
    assert assumed.added_to("mac", FREE) == FREE


def test_the_prefill_node_s_first_report_after_acceptance_covers_its_part() -> None:
    """Before the decode node has the request, the prefill node cannot know of it."""
    assumed = placed(Clock())

    assumed.reported("dgx", [])
    assert assumed.added_to("dgx", FREE).num_waiting == 1

    assumed.reported("mac", ["p"])
    assumed.reported("dgx", [])
    assert assumed.added_to("dgx", FREE) == FREE


def test_an_outcome_ends_a_placement() -> None:
    """A request that has finished is work no more."""
    assumed = placed(Clock())

    assumed.settle("p")

    assert assumed.added_to("mac", FREE) == FREE
    assert assumed.added_to("dgx", FREE) == FREE


def test_a_placement_that_nobody_takes_up_expires() -> None:
    """A gateway that died between Place and Generate must not fill a node for ever."""
    clock = Clock()
    assumed = placed(clock)

    clock.seconds += 10.0

    assert assumed.added_to("mac", FREE) == FREE
    assert assumed.added_to("dgx", FREE) == FREE


def test_a_node_that_left_takes_its_placements_along() -> None:
    """A process that comes back under the same id starts empty."""
    assumed = placed(Clock())

    assumed.forget("mac")

    assert assumed.added_to("mac", FREE) == FREE
    assert assumed.added_to("dgx", FREE).num_waiting == 1


PLACED = PlacedRequest(Candidate("mac", ""), 10, 0.01)


def test_a_placement_is_taken_once() -> None:
    """The second outcome of the same name finds nothing."""
    ledger = AwaitedOutcomes()
    ledger.add("p", PLACED)

    assert ledger.take("p") is PLACED
    assert ledger.take("p") is None


def test_the_oldest_placement_goes_first() -> None:
    """The ledger is bounded."""
    ledger = AwaitedOutcomes(max_entries=2)
    for placement_id in "abc":
        ledger.add(placement_id, PLACED)

    assert [ledger.take(placement_id) for placement_id in "abc"] == [None, PLACED, PLACED]
